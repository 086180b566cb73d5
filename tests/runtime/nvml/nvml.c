/* An NVML that plays what a test wants: four GPUs, two of them linked by NVLink and two to a switch.

   The file named by NVML_CASE is read at each call and holds words: driver_mismatch, lost:N (GPU N is lost),
   unlisted (the last GPU is no longer counted), xid:N:E (GPU N had the error E, told once), hang, mig, ecc:N, hot:N,
   unsupported (measurements are not supported). Compiled with -DOLD it lacks the symbols that old drivers lack. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10,
       LOST = 15, MISMATCH = 18 };
enum { GPUS = 4, LANES = 12 };

typedef struct gpu { int index, mig; } gpu;
typedef struct { char bus_legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { unsigned long long total, free, used; } memory_info;
typedef struct { unsigned gpu, memory; } rates;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } process_info;
typedef struct { gpu *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_data;

static gpu gpus[GPUS] = {{0, -1}, {1, -1}, {2, -1}, {3, -1}};
static gpu instances[2] = {{0, 0}, {0, 1}};
static int registered, told[GPUS];

static int says(const char *word, int number, int *value) {
    static char text[4096];
    FILE *file = fopen(getenv("NVML_CASE"), "r");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    text[length] = 0;
    char wanted[64];
    snprintf(wanted, sizeof wanted, number < 0 ? "%s" : "%s:%d", word, number);
    for (char *at = strstr(text, wanted); at; at = strstr(at + 1, wanted)) {
        char next = at[strlen(wanted)];
        if (value && next == ':') *value = atoi(at + strlen(wanted) + 1);
        if (next == 0 || next == ' ' || next == '\n' || next == ':') return 1;
    }
    return 0;
}

static int state(gpu *device) {
    if (says("hang", -1, NULL)) sleep(600);
    return says("lost", device->index, NULL) ? LOST : OK;
}

#define ASK(device) do { int code = state(device); if (code != OK) return code; } while (0)
#define MEASURE(device) do { ASK(device); if (says("unsupported", -1, NULL)) return NOT_SUPPORTED; } while (0)

int nvmlInitWithFlags(unsigned flags) { (void)flags; return says("driver_mismatch", -1, NULL) ? MISMATCH : OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) {
    return code == MISMATCH ? "Driver/library version mismatch" : code == LOST ? "GPU is lost" : "Error";
}
int nvmlDeviceGetCount_v2(unsigned *count) {
    if (says("driver_mismatch", -1, NULL)) return MISMATCH;
    *count = says("unlisted", -1, NULL) ? GPUS - 1 : GPUS;
    return OK;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, gpu **device) {
    if (index >= GPUS) return INVALID;
    *device = &gpus[index];
    return OK;
}
int nvmlDeviceGetName(gpu *device, char *name, unsigned length) {
    ASK(device);
    if (device->mig >= 0) snprintf(name, length, "NVIDIA A100-SXM4-80GB MIG %s", device->mig ? "2g.20gb" : "1g.10gb");
    else snprintf(name, length, "NVIDIA A100-SXM4-80GB");
    return OK;
}
int nvmlDeviceGetUUID(gpu *device, char *uuid, unsigned length) {
    ASK(device);
    snprintf(uuid, length, "GPU-0000000%d", device->index);
    return OK;
}
static void address(int index, pci_info *info) {
    memset(info, 0, sizeof *info);
    info->bus = 0x10 + index;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", info->bus);
}
int nvmlDeviceGetPciInfo_v3(gpu *device, pci_info *info) { ASK(device); address(device->index, info); return OK; }
int nvmlDeviceGetMemoryInfo(gpu *device, memory_info *info) {
    ASK(device);
    info->total = 80ULL << 30;
    info->used = (unsigned long long)(device->index + 1) << 30;
    info->free = info->total - info->used;
    return OK;
}
int nvmlDeviceGetUtilizationRates(gpu *device, rates *found) {
    MEASURE(device);
    found->gpu = device->index ? 25 * device->index : 0;
    found->memory = 1;
    return OK;
}
int nvmlDeviceGetPowerUsage(gpu *device, unsigned *milliwatts) { MEASURE(device); *milliwatts = 61500; return OK; }
#ifndef OLD
int nvmlDeviceGetTemperature(gpu *device, int sensor, unsigned *degrees) {
    (void)sensor; MEASURE(device); *degrees = 40 + device->index; return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(gpu *device, unsigned long long *reasons) {
    MEASURE(device);
    *reasons = says("hot", device->index, NULL) ? 0x40 | 0x4 : 0x1;
    return OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(gpu *device, unsigned *count, process_info *found) {
    ASK(device);
    if (device->index != 1) { *count = 0; return OK; }
    if (!found || *count < 2) { *count = 2; return INSUFFICIENT_SIZE; }
    memset(found, 0, 2 * sizeof *found);
    found[0].pid = 4321;
    found[1].pid = 1234;
    *count = 2;
    return OK;
}
#endif
int nvmlDeviceGetCurrentClocksThrottleReasons(gpu *device, unsigned long long *reasons) {
    MEASURE(device); *reasons = 0x4; return OK;
}
int nvmlDeviceGetTotalEccErrors(gpu *device, int type, int counter, unsigned long long *errors) {
    MEASURE(device);
    *errors = type == 1 && counter == 0 && says("ecc", device->index, NULL) ? 2 : 0;
    return OK;
}
int nvmlEventSetCreate(void **set) {
    registered = 0;
    memset(told, 0, sizeof told);
    *set = &registered;
    return OK;
}
int nvmlEventSetFree(void *set) { (void)set; return OK; }
int nvmlDeviceRegisterEvents(gpu *device, unsigned long long types, void *set) {
    (void)set; ASK(device);
    if (device->index == 3) return NOT_SUPPORTED;
    if (types & 8) registered |= 1 << device->index;
    return OK;
}
int nvmlEventSetWait_v2(void *set, event_data *data, unsigned timeout) {
    (void)set; (void)timeout;
    for (int index = 0; index < GPUS; index++) {
        int error = 0;
        if (registered & 1 << index && says("xid", index, &error) && told[index] != error) {
            told[index] = error;
            memset(data, 0, sizeof *data);
            data->device = &gpus[index];
            data->type = 8;
            data->data = error;
            return OK;
        }
    }
    return TIMEOUT;
}
/* GPUs 0 and 1 share four lanes; GPUs 2 and 3 have six each into a switch. */
int nvmlDeviceGetNvLinkState(gpu *device, unsigned lane, unsigned *active) {
    ASK(device);
    if (lane >= LANES) return INVALID;
    *active = lane < (device->index < 2 ? 4u : 6u);
    return OK;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(gpu *device, unsigned lane, pci_info *info) {
    (void)lane; ASK(device);
    address(device->index < 2 ? 1 - device->index : 0x40, info);
    return OK;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(gpu *device, unsigned lane, unsigned *type) {
    (void)lane; ASK(device); *type = device->index < 2 ? 0 : 2; return OK;
}
int nvmlDeviceGetTopologyCommonAncestor(gpu *one, gpu *other, unsigned *level) {
    ASK(one); ASK(other);
    *level = one->index / 2 == other->index / 2 ? 10 : 50;
    return OK;
}
int nvmlDeviceGetMigMode(gpu *device, unsigned *current, unsigned *pending) {
    ASK(device);
    if (!says("mig", -1, NULL)) return NOT_SUPPORTED;
    *current = *pending = device->index == 0;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(gpu *device, unsigned *count) { ASK(device); *count = 7; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(gpu *device, unsigned index, gpu **instance) {
    ASK(device);
    /* Its places are not filled from the front. */
    if (index != 1 && index != 4) return NOT_FOUND;
    *instance = &instances[index == 4];
    return OK;
}
