"""One file per trace format; each defines ``FORMAT`` and is named in ``bloxopt.workloads.formats.FORMATS``."""
