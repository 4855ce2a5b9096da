/* What uses a card: utilization, processes, MIG devices with their profiles and placements. */
#include "fake.h"

int mig_on(int g) { return value(g, "mig_mode") && number(value(g, "mig_mode")); }

/* ---- processes ---- */
int processes(int g, int m, char kind, struct process *out, int max) {
    struct mig mig;
    const char *v;
    int k = 0;
    if (m >= 0 && !mig_device(g, m, &mig)) return 0;
    for (int n = 0; (v = nth_value(g, "proc", n)); n++) {
        struct process p = {.gi = ~0u, .ci = ~0u};
        if (sscanf(v, "%u %lld %c %u %u %u %u", &p.pid, &p.mib, &p.kind, &p.sm, &p.mem, &p.gi, &p.ci) < 3) continue;
        if ((kind && p.kind != kind) || (m >= 0 && (p.gi != mig.gi || p.ci != mig.ci)) || k == max) continue;
        out[k++] = p;
    }
    return k;
}
static u64 bytes(long long mib) { return mib < 0 ? ~0ULL : (u64)mib << 20; }
static ret_t list(const char *fn, device_t d, u32 *n, void *out, char kind, int v1) {
    DEVICE(fn);
    struct process p[256];
    u32 k = (u32)processes(g, m, kind, p, 256), room = *n;
    *n = k;
    if (k && (!out || room < k)) LEAVE(TOO_SMALL);
    for (u32 i = 0; i < k; i++)
        if (v1) ((process_v1 *)out)[i] = (process_v1){p[i].pid, bytes(p[i].mib)};
        else ((process_v2 *)out)[i] = (process_v2){p[i].pid, bytes(p[i].mib), p[i].gi, p[i].ci};
    LEAVE(OK);
}
#define PROCESSES(fn, kind) \
    API ret_t fn(device_t d, u32 *n, void *out) { return list(#fn, d, n, out, kind, 1); } \
    API ret_t fn##_v2(device_t d, u32 *n, void *out) { return list(#fn "_v2", d, n, out, kind, 0); } \
    API ret_t fn##_v3(device_t d, u32 *n, void *out) { return list(#fn "_v3", d, n, out, kind, 0); }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, 'C')
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, 'G')
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, 'M')
API ret_t nvmlDeviceGetRunningProcessDetailList(device_t d, process_details *out) {
    DEVICE("nvmlDeviceGetRunningProcessDetailList");
    VERSION(out, 1);
    struct process p[256];
    u32 k = (u32)processes(g, m, "CGM"[out->mode % 3], p, 256), room = out->n;
    out->n = k;
    if (k && (!out->list || room < k)) LEAVE(TOO_SMALL);
    for (u32 i = 0; i < k; i++) out->list[i] = (process_detail){p[i].pid, bytes(p[i].mib), p[i].gi, p[i].ci, ~0ULL};
    LEAVE(OK);
}

/* ---- utilization: none of it is told in MIG mode ---- */
API ret_t nvmlDeviceGetUtilizationRates(device_t d, u32 *out) {
    DEVICE("nvmlDeviceGetUtilizationRates");
    const char *gpu = value(g, "util_gpu"), *mem = value(g, "util_mem");
    NEED(gpu && !mig_on(g));
    out[0] = (u32)number(gpu), out[1] = mem ? (u32)number(mem) : 0;
    LEAVE(OK);
}
#define ENGINE(fn, key) \
    API ret_t fn(device_t d, u32 *out, u32 *period_us) { \
        DEVICE(#fn); \
        const char *v = value(g, key); \
        NEED(v && !mig_on(g)); \
        *out = (u32)number(v), *period_us = 167000; \
        LEAVE(OK); \
    }
ENGINE(nvmlDeviceGetEncoderUtilization, "util_enc")
ENGINE(nvmlDeviceGetDecoderUtilization, "util_dec")
static u32 busy(int g, int m, struct process *p) {
    u32 k = (u32)processes(g, m, 0, p, 256), n = 0;
    for (u32 i = 0; i < k; i++) if (p[i].sm || p[i].mem) p[n++] = p[i];
    return n;
}
API ret_t nvmlDeviceGetProcessUtilization(device_t d, sample_v1 *out, u32 *n, u64 since) {
    (void)since;
    DEVICE("nvmlDeviceGetProcessUtilization");
    NEED(!mig_on(g));
    struct process p[256];
    u32 k = busy(g, m, p), room = *n;
    *n = k;
    if (!k) LEAVE(NOT_FOUND);
    if (!out || room < k) LEAVE(TOO_SMALL);
    for (u32 i = 0; i < k; i++) out[i] = (sample_v1){p[i].pid, now_us(), p[i].sm, p[i].mem, 0, 0};
    LEAVE(OK);
}
API ret_t nvmlDeviceGetProcessesUtilizationInfo(device_t d, samples_v2 *out) {
    DEVICE("nvmlDeviceGetProcessesUtilizationInfo");
    VERSION(out, 1);
    NEED(!mig_on(g));
    struct process p[256];
    u32 k = busy(g, m, p), room = out->n;
    out->n = k;
    if (!k) LEAVE(NOT_FOUND);
    if (!out->list || room < k) LEAVE(TOO_SMALL);
    for (u32 i = 0; i < k; i++) out->list[i] = (sample_v2){now_us(), p[i].pid, p[i].sm, p[i].mem, 0, 0, 0, 0};
    LEAVE(OK);
}

/* ---- MIG ---- */
int mig_device(int g, int n, struct mig *out) { /* `mig = -` is a hole in the range of indices */
    const char *v = nth_value(g, "mig", n);
    memset(out, 0, sizeof *out);
    return v && mig_on(g) &&
           sscanf(v, "%95s %u %u %u %u %u %u %u %llu %llu", out->uuid, &out->gi, &out->ci, &out->profile, &out->start,
                  &out->size, &out->slices, &out->sm, &out->memory_mib, &out->used_mib) == 10;
}
int profile(int g, int by_id, u32 wanted, profile_v2 *out, placement *places, u32 *n) {
    /* gi_profile = number id name slices instances sm memory_mib ce dec jpg ofa start,start,... size */
    const char *v;
    for (int i = 0; (v = nth_value(g, "gi_profile", i)); i++) {
        u32 nr, size;
        char starts[64];
        memset(out, 0, sizeof *out);
        if (sscanf(v, "%u %u %95s %u %u %u %llu %u %u %u %u %63s %u", &nr, &out->id, out->name, &out->slices,
                   &out->instances, &out->sm, &out->memory_mib, &out->ce, &out->dec, &out->jpg, &out->ofa, starts,
                   &size) != 13 || (by_id ? out->id : nr) != wanted)
            continue;
        *n = 0;
        for (char *s = starts; *s; s += *s == ',') {
            u32 start = (u32)strtoul(s, &s, 10);
            if (places) places[*n] = (placement){start, size};
            ++*n;
        }
        return 1;
    }
    return 0;
}
API ret_t nvmlDeviceGetMigMode(device_t d, u32 *current, u32 *pending) {
    DEVICE("nvmlDeviceGetMigMode");
    const char *now = value(g, "mig_mode"), *next = value(g, "mig_mode_pending");
    NEED(now);
    *current = (u32)number(now), *pending = next ? (u32)number(next) : *current;
    LEAVE(OK);
}
API ret_t nvmlDeviceGetMaxMigDeviceCount(device_t d, u32 *n) {
    DEVICE("nvmlDeviceGetMaxMigDeviceCount");
    *n = mig_on(g) ? 7 : 0;
    LEAVE(OK);
}
API ret_t nvmlDeviceGetMigDeviceHandleByIndex(device_t d, u32 i, device_t *out) {
    DEVICE("nvmlDeviceGetMigDeviceHandleByIndex");
    struct mig mig;
    if (m >= 0 || i >= MIGS) LEAVE(INVALID);
    if (!mig_device(g, (int)i, &mig)) LEAVE(NOT_FOUND);
    *out = &migs[g][i];
    LEAVE(OK);
}
API ret_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t d, device_t *out) {
    DEVICE("nvmlDeviceGetDeviceHandleFromMigDeviceHandle");
    if (m < 0) LEAVE(INVALID);
    *out = &gpus[g];
    LEAVE(OK);
}
API ret_t nvmlDeviceIsMigDeviceHandle(device_t d, u32 *out) {
    DEVICE("nvmlDeviceIsMigDeviceHandle");
    *out = m >= 0;
    LEAVE(OK);
}
#define MIG_ID(fn, id) \
    API ret_t fn(device_t d, u32 *out) { \
        DEVICE(#fn); \
        struct mig mig; \
        NEED(m >= 0); \
        if (!mig_device(g, m, &mig)) LEAVE(INVALID); \
        *out = mig.id; \
        LEAVE(OK); \
    }
MIG_ID(nvmlDeviceGetGpuInstanceId, gi)
MIG_ID(nvmlDeviceGetComputeInstanceId, ci)
API ret_t nvmlDeviceGetAttributes_v2(device_t d, attributes *out) {
    DEVICE("nvmlDeviceGetAttributes_v2");
    struct mig mig;
    NEED(m >= 0);
    if (!mig_device(g, m, &mig)) LEAVE(INVALID);
    *out = (attributes){mig.sm, mig.slices, 0, 0, 0, 0, mig.slices, mig.slices, mig.memory_mib};
    LEAVE(OK);
}
/* The handle of a GPU instance is that of its first MIG device. */
API ret_t nvmlDeviceGetGpuInstanceById(device_t d, u32 id, device_t *out) {
    DEVICE("nvmlDeviceGetGpuInstanceById");
    ROOT();
    NEED(m < 0 && mig_on(g));
    struct mig mig;
    for (int i = 0; i < MIGS; i++)
        if (mig_device(g, i, &mig) && mig.gi == id) {
            *out = &migs[g][i];
            LEAVE(OK);
        }
    LEAVE(NOT_FOUND);
}
API ret_t nvmlGpuInstanceGetInfo(device_t d, gi_info *out) {
    DEVICE("nvmlGpuInstanceGetInfo");
    struct mig mig;
    profile_v2 p;
    u32 n;
    if (m < 0 || !mig_device(g, m, &mig)) LEAVE(INVALID);
    if (!profile(g, 0, mig.profile, &p, NULL, &n)) LEAVE(UNKNOWN);
    *out = (gi_info){&gpus[g], mig.gi, p.id, {mig.start, mig.size}};
    LEAVE(OK);
}
API ret_t nvmlDeviceGetGpuInstanceProfileInfo(device_t d, u32 number, profile_v1 *out) {
    DEVICE("nvmlDeviceGetGpuInstanceProfileInfo");
    profile_v2 p;
    u32 n;
    NEED(profile(g, 0, number, &p, NULL, &n));
    *out = (profile_v1){p.id, 0, p.slices, p.instances, p.sm, p.ce, p.dec, p.enc, p.jpg, p.ofa, p.memory_mib};
    LEAVE(OK);
}
API ret_t nvmlDeviceGetGpuInstanceProfileInfoV(device_t d, u32 number, profile_v2 *out) {
    DEVICE("nvmlDeviceGetGpuInstanceProfileInfoV");
    VERSION(out, 2);
    profile_v2 p;
    u32 n, version = out->version;
    NEED(profile(g, 0, number, &p, NULL, &n));
    *out = p, out->version = version;
    snprintf(out->name, sizeof out->name, "MIG %.80s", p.name);
    LEAVE(OK);
}
API ret_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(device_t d, u32 id, placement *out, u32 *n) {
    DEVICE("nvmlDeviceGetGpuInstancePossiblePlacements_v2");
    ROOT();
    profile_v2 p;
    placement places[32];
    NEED(profile(g, 1, id, &p, places, n));
    if (out) memcpy(out, places, *n * sizeof *places);
    LEAVE(OK);
}
API ret_t nvmlDeviceGetGpuInstanceRemainingCapacity(device_t d, u32 id, u32 *out) {
    DEVICE("nvmlDeviceGetGpuInstanceRemainingCapacity");
    ROOT();
    profile_v2 p;
    placement places[32];
    struct mig mig;
    u32 n, taken = 0;
    NEED(mig_on(g) && profile(g, 1, id, &p, places, &n));
    for (int i = 0; i < MIGS; i++)
        if (mig_device(g, i, &mig)) taken |= ((1u << mig.size) - 1) << mig.start;
    *out = 0;
    for (u32 i = 0; i < n; i++) {
        u32 mask = ((1u << places[i].size) - 1) << places[i].start;
        if (!(taken & mask) && *out < p.instances) taken |= mask, ++*out;
    }
    LEAVE(OK);
}
