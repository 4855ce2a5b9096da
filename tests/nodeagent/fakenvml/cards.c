/* Start and stop, and what a card is: identity, memory, limits, sensors, health. */
#include "fake.h"

API ret_t nvmlInitWithFlags(u32 flags) {
    (void)flags;
    ret_t r = enter("nvmlInitWithFlags", 0);
    if (!r && !has_description()) r = NO_DRIVER;
    if (!r) references++;
    LEAVE(r);
}
API ret_t nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API ret_t nvmlInit(void) { return nvmlInitWithFlags(0); }
API ret_t nvmlShutdown(void) {
    SYSTEM("nvmlShutdown");
    references--;
    LEAVE(OK);
}

#define SYSTEM_TEXT(fn, key) \
    API ret_t fn(char *out, u32 length) { \
        SYSTEM(#fn); \
        const char *v = system_value(key); \
        NEED(v); \
        LEAVE(text(out, length, v)); \
    }
SYSTEM_TEXT(nvmlSystemGetDriverVersion, "driver_version")
SYSTEM_TEXT(nvmlSystemGetNVMLVersion, "nvml_version")
API ret_t nvmlSystemGetCudaDriverVersion_v2(int *out) {
    SYSTEM("nvmlSystemGetCudaDriverVersion_v2");
    const char *v = system_value("cuda_version");
    NEED(v);
    *out = (int)number(v);
    LEAVE(OK);
}
API ret_t nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }
API ret_t nvmlSystemGetProcessName(u32 pid, char *out, u32 length) {
    SYSTEM("nvmlSystemGetProcessName");
    char path[64], name[256] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *f = fopen(path, "r");
    if (!f) LEAVE(NOT_FOUND);
    name[fread(name, 1, sizeof name - 1, f)] = 0;
    fclose(f);
    LEAVE(text(out, length, name));
}

/* ---- enumeration and identity ---- */
API ret_t nvmlDeviceGetCount_v2(u32 *n) {
    SYSTEM("nvmlDeviceGetCount_v2");
    *n = (u32)n_gpus;
    LEAVE(OK);
}
static ret_t handle(u32 i, const char *fn, device_t *out) {
    if (i >= (u32)n_gpus) return INVALID;
    ret_t r = forced((int)i, fn);
    if (!r) *out = &gpus[i];
    return r;
}
API ret_t nvmlDeviceGetHandleByIndex_v2(u32 i, device_t *out) {
    SYSTEM("nvmlDeviceGetHandleByIndex_v2");
    LEAVE(handle(i, "nvmlDeviceGetHandleByIndex_v2", out));
}
API ret_t nvmlDeviceGetHandleByUUID(const char *uuid, device_t *out) {
    SYSTEM("nvmlDeviceGetHandleByUUID");
    struct mig mig;
    for (int g = 0; g < n_gpus; g++) {
        if (value(g, "uuid") && !strcmp(value(g, "uuid"), uuid))
            LEAVE(handle((u32)g, "nvmlDeviceGetHandleByUUID", out));
        for (int m = 0; m < MIGS; m++)
            if (mig_device(g, m, &mig) && !strcmp(mig.uuid, uuid)) {
                *out = &migs[g][m];
                LEAVE(OK);
            }
    }
    LEAVE(NOT_FOUND);
}
API ret_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, device_t *out) {
    SYSTEM("nvmlDeviceGetHandleByPciBusId_v2");
    pci_info wanted, has;
    if (pci(bus_id, &wanted, NULL)) LEAVE(INVALID);
    for (int g = 0; g < n_gpus; g++)
        if (value(g, "pci") && !pci(value(g, "pci"), &has, NULL) && !strcmp(has.bus_id, wanted.bus_id))
            LEAVE(handle((u32)g, "nvmlDeviceGetHandleByPciBusId_v2", out));
    LEAVE(NOT_FOUND);
}
API ret_t nvmlDeviceGetIndex(device_t d, u32 *out) {
    DEVICE("nvmlDeviceGetIndex");
    *out = m < 0 ? (u32)g : (u32)m;
    LEAVE(OK);
}
API ret_t nvmlDeviceGetName(device_t d, char *out, u32 length) {
    DEVICE("nvmlDeviceGetName");
    const char *v = value(g, "name");
    NEED(v);
    if (m < 0) LEAVE(text(out, length, v));
    struct mig mig;
    profile_v2 p;
    u32 n;
    char name[256];
    if (!mig_device(g, m, &mig)) LEAVE(INVALID);
    snprintf(name, sizeof name, "%s MIG %s", v, profile(g, 0, mig.profile, &p, NULL, &n) ? p.name : "?");
    LEAVE(text(out, length, name));
}
API ret_t nvmlDeviceGetUUID(device_t d, char *out, u32 length) {
    DEVICE("nvmlDeviceGetUUID");
    struct mig mig;
    if (m >= 0) LEAVE(mig_device(g, m, &mig) ? text(out, length, mig.uuid) : INVALID);
    const char *v = value(g, "uuid");
    NEED(v);
    LEAVE(text(out, length, v));
}
ret_t pci(const char *from, pci_info *out, const char *id) {
    memset(out, 0, sizeof *out);
    if (sscanf(from, "%x:%x:%x", &out->domain, &out->bus, &out->device) != 3) return UNKNOWN;
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus & 255, out->device & 31);
    snprintf(out->legacy, sizeof out->legacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 255, out->device & 31);
    out->id = id ? (u32)number(id) : 0x233010de;
    return OK;
}
API ret_t nvmlDeviceGetPciInfo_v3(device_t d, pci_info *out) {
    DEVICE("nvmlDeviceGetPciInfo_v3");
    const char *v = value(g, "pci");
    NEED(v);
    LEAVE(pci(v, out, value(g, "pci_device_id")));
}
API ret_t nvmlDeviceGetSerial(device_t d, char *out, u32 length) {
    DEVICE("nvmlDeviceGetSerial");
    const char *v = value(g, "serial");
    NEED(v);
    LEAVE(text(out, length, v));
}
API ret_t nvmlDeviceGetCudaComputeCapability(device_t d, int *major, int *minor) {
    DEVICE("nvmlDeviceGetCudaComputeCapability");
    const char *v = value(g, "compute_capability");
    NEED(v && sscanf(v, "%d.%d", major, minor) == 2);
    LEAVE(OK);
}

NUMBER(nvmlDeviceGetMinorNumber, "minor", u32, 0)
NUMBER(nvmlDeviceGetBrand, "brand", u32, 0)
NUMBER(nvmlDeviceGetArchitecture, "architecture", u32, 0)
NUMBER(nvmlDeviceGetPersistenceMode, "persistence_mode", u32, 0)
NUMBER(nvmlDeviceGetDisplayMode, "display_mode", u32, 0)
NUMBER(nvmlDeviceGetDisplayActive, "display_active", u32, 0)
NUMBER(nvmlDeviceGetComputeMode, "compute_mode", u32, 0)
NUMBER(nvmlDeviceGetVirtualizationMode, "virtualization_mode", u32, 0)
NUMBER(nvmlDeviceGetPowerUsage, "power_mw", u32, 1)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw", u32, 1)
NUMBER(nvmlDeviceGetPowerManagementLimit, "power_limit_mw", u32, 1)
NUMBER(nvmlDeviceGetFanSpeed, "fan", u32, 1)
NUMBER(nvmlDeviceGetPerformanceState, "pstate", u32, 1)
NUMBER(nvmlDeviceGetCurrentClocksEventReasons, "clocks_event_reasons", u64, 1)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen", u32, 1)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width", u32, 1)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen", u32, 1)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width", u32, 1)
NUMBER(nvmlDeviceGetNumaNodeId, "gpu_numa_node", u32, 1)
NUMBER(nvmlDeviceGetSupportedEventTypes, "supported_events", u64, 1)
NUMBER(nvmlDeviceGetRetiredPagesPendingStatus, "retired_pages_pending", u32, 1)

/* ---- memory ---- */
static ret_t memory(int g, int m, memory_v2 *out) {
    struct mig mig;
    if (m >= 0) {
        if (!mig_device(g, m, &mig)) return INVALID;
        out->total = mig.memory_mib << 20, out->used = mig.used_mib << 20, out->reserved = 0;
    } else {
        const char *total = value(g, "mem_total"), *used = value(g, "mem_used"), *reserved = value(g, "mem_reserved");
        if (!total) return NOT_SUPPORTED; /* the memory is the host's */
        out->total = number(total), out->used = used ? number(used) : 0, out->reserved = reserved ? number(reserved) : 0;
    }
    out->free = out->total - out->used - out->reserved;
    return OK;
}
API ret_t nvmlDeviceGetMemoryInfo(device_t d, memory_v1 *out) {
    DEVICE("nvmlDeviceGetMemoryInfo");
    memory_v2 now;
    if (!(r = memory(g, m, &now))) *out = (memory_v1){now.total, now.free, now.used + now.reserved};
    LEAVE(r);
}
API ret_t nvmlDeviceGetMemoryInfo_v2(device_t d, memory_v2 *out) {
    DEVICE("nvmlDeviceGetMemoryInfo_v2");
    VERSION(out, 2);
    LEAVE(memory(g, m, out));
}
API ret_t nvmlDeviceGetBAR1MemoryInfo(device_t d, memory_v1 *out) {
    DEVICE("nvmlDeviceGetBAR1MemoryInfo");
    const char *v = value(g, "bar1_total");
    NEED(v);
    *out = (memory_v1){number(v), number(v) - (2 << 20), 2 << 20};
    LEAVE(OK);
}

/* Limits outlive the process that set them: each is a line `gpu soft hard cgroup` of the file `limits`, the last one
 * counts, and all are gone with the cgroup's directory. */
static int limited(int g) { return value(g, "memory_limits") && number(value(g, "memory_limits")); }
API ret_t nvmlDeviceSetMemoryLimits_v1(device_t d, limits_set *in) {
    DEVICE("nvmlDeviceSetMemoryLimits_v1");
    ROOT();
    NEED(m < 0 && limited(g) && !mig_on(g));
    if (!in->cgroup || access(in->cgroup, F_OK)) LEAVE(NOT_FOUND);
    if (in->soft > in->hard) LEAVE(INVALID);
    FILE *f = fopen(beside("limits"), "a");
    if (!f) LEAVE(UNKNOWN);
    fprintf(f, "%d %llu %llu %s\n", g, in->soft, in->hard, in->cgroup);
    fclose(f);
    LEAVE(OK);
}
static u64 used_by(int g, const char *cgroup) {
    char path[4096];
    struct process list[256];
    u64 used = 0;
    u32 pid;
    snprintf(path, sizeof path, "%s/cgroup.procs", cgroup);
    FILE *f = fopen(path, "r");
    int n = processes(g, -1, 0, list, 256);
    while (f && fscanf(f, "%u", &pid) == 1)
        for (int i = 0; i < n; i++)
            if (list[i].pid == pid && list[i].mib > 0) used += (u64)list[i].mib << 20;
    if (f) fclose(f);
    return used;
}
API ret_t nvmlDeviceGetMemoryLimits_v1(device_t d, limits_get *out) {
    DEVICE("nvmlDeviceGetMemoryLimits_v1");
    NEED(m < 0 && limited(g) && !mig_on(g));
    if (!out->cgroup || access(out->cgroup, F_OK)) LEAVE(NOT_FOUND);
    out->soft = 0, out->hard = ~0ULL, out->used = used_by(g, out->cgroup);
    FILE *f = fopen(beside("limits"), "r");
    int gpu;
    u64 soft, hard;
    char cgroup[4096];
    while (f && fscanf(f, "%d %llu %llu %4095[^\n]", &gpu, &soft, &hard, cgroup) == 4)
        if (gpu == g && !strcmp(cgroup, out->cgroup)) out->soft = soft, out->hard = hard;
    if (f) fclose(f);
    LEAVE(OK);
}

/* ---- sensors with a selector ---- */
API ret_t nvmlDeviceGetTemperature(device_t d, u32 sensor, u32 *out) {
    (void)sensor;
    DEVICE("nvmlDeviceGetTemperature");
    const char *v = value(g, "temperature");
    NEED(v && m < 0);
    *out = (u32)number(v);
    LEAVE(OK);
}
API ret_t nvmlDeviceGetTemperatureV(device_t d, temperature_v1 *out) {
    DEVICE("nvmlDeviceGetTemperatureV");
    VERSION(out, 1);
    const char *v = value(g, "temperature");
    NEED(v && m < 0);
    out->celsius = (int)number(v);
    LEAVE(OK);
}
#define SELECT(fn, format) \
    API ret_t fn(device_t d, u32 which, u32 *out) { \
        DEVICE(#fn); \
        char key[32]; \
        snprintf(key, sizeof key, format, which); \
        const char *v = value(g, key); \
        NEED(v && m < 0); \
        *out = (u32)number(v); \
        LEAVE(OK); \
    }
SELECT(nvmlDeviceGetClockInfo, "clock%u")
SELECT(nvmlDeviceGetMaxClockInfo, "max_clock%u")

/* ---- health ---- */
API ret_t nvmlDeviceGetEccMode(device_t d, u32 *current, u32 *pending) {
    DEVICE("nvmlDeviceGetEccMode");
    const char *v = value(g, "ecc_mode");
    NEED(v);
    *current = *pending = (u32)number(v);
    LEAVE(OK);
}
static ret_t ecc(int g, u32 uncorrected, u32 aggregate, u64 *out) { /* ecc_uncorrected_volatile = 3 */
    char key[48];
    const char *on = value(g, "ecc_mode"), *v;
    if (!on || !number(on)) return NOT_SUPPORTED;
    snprintf(key, sizeof key, "ecc_%scorrected_%s", uncorrected ? "un" : "", aggregate ? "aggregate" : "volatile");
    *out = (v = value(g, key)) ? number(v) : 0;
    return OK;
}
API ret_t nvmlDeviceGetTotalEccErrors(device_t d, u32 type, u32 counter, u64 *out) {
    DEVICE("nvmlDeviceGetTotalEccErrors");
    LEAVE(ecc(g, type, counter, out));
}
API ret_t nvmlDeviceGetMemoryErrorCounter(device_t d, u32 type, u32 counter, u32 where, u64 *out) {
    (void)where;
    DEVICE("nvmlDeviceGetMemoryErrorCounter");
    LEAVE(ecc(g, type, counter, out));
}
API ret_t nvmlDeviceGetRemappedRows(device_t d, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    DEVICE("nvmlDeviceGetRemappedRows"); /* remapped_rows = 0 2 1 0 */
    const char *v = value(g, "remapped_rows");
    struct mig mig;
    NEED(v && m < 0 && !mig_device(g, 0, &mig));
    LEAVE(sscanf(v, "%u %u %u %u", corrected, uncorrected, pending, failed) == 4 ? OK : UNKNOWN);
}
API ret_t nvmlDeviceGetFieldValues(device_t d, int n, field_value *fields) { /* field.<id> = value */
    DEVICE("nvmlDeviceGetFieldValues");
    for (int i = 0; i < n; i++) {
        char key[32];
        snprintf(key, sizeof key, "field.%u", fields[i].field);
        const char *v = value(g, key);
        fields[i].at = (long long)now_us(), fields[i].ret = v ? OK : NOT_SUPPORTED, fields[i].type = 1;
        fields[i].value.u = v ? number(v) : 0;
    }
    LEAVE(OK);
}

/* ---- the names that older clients ask for ---- */
#define ALIAS(old, new) API __typeof__(new) old __attribute__((alias(#new)));
ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2)
ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2)
ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2)
ALIAS(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v3)
