"""The route of what-if questions, for admins."""

from __future__ import annotations

from fastapi import APIRouter

from bloxopt.runtime.answers import ComparisonView
from bloxopt.runtime.live.faults import ConflictError
from bloxopt.runtime.service.routes import PROBLEMS, Admin, TheService
from bloxopt.runtime.service.whatif import Question

router = APIRouter(prefix="/v1/whatif", tags=["what if"], responses=PROBLEMS)


@router.post("")
def what_if(service: TheService, caller: Admin, question: Question) -> ComparisonView:
    """What another policy, solver, placement, selector or admission would do now and later. Nothing is applied."""
    alternative = question.alternative(service.config)
    copied = service.loop.copy()
    if copied is None:
        raise ConflictError("there is nothing to compare yet: no node has registered, or the last round failed")
    return ComparisonView.model_validate(service.what_if.answer(copied, alternative, question))
