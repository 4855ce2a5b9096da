/* Where a card sits and what it is connected to, the events, and the names that older clients ask for. */
#include "fake.h"
#include <poll.h>
#include <strings.h>
#include <sys/inotify.h>
#include <sys/stat.h>

static u32 level(int a, int b) {
    char key[32];
    snprintf(key, sizeof key, "%d-%d", a < b ? a : b, a < b ? b : a);
    const char *v = topology_value(key);
    if (!v) v = topology_value("default");
    return a == b ? 0 : v ? (u32)number(v) : 50;
}
API ret_t nvmlDeviceGetTopologyCommonAncestor(device_t d, device_t other, u32 *out) {
    DEVICE("nvmlDeviceGetTopologyCommonAncestor");
    if (!is_handle(other)) LEAVE(INVALID);
    *out = level(g, other->gpu);
    LEAVE(OK);
}
API ret_t nvmlDeviceGetTopologyNearestGpus(device_t d, u32 within, u32 *n, device_t *out) {
    DEVICE("nvmlDeviceGetTopologyNearestGpus");
    u32 k = 0, room = *n;
    for (int i = 0; i < n_gpus; i++)
        if (i != g && level(g, i) <= within) {
            if (out && k < room) out[k] = &gpus[i];
            k++;
        }
    *n = k;
    LEAVE(OK);
}

/* nvlink = link remote [version], where remote is a card's index, `switch` or a PCI bus id */
static int nvlink(int g, u32 link, char *remote, u32 *version) {
    const char *v;
    u32 nr;
    for (int n = 0; (v = nth_value(g, "nvlink", n)); n++) {
        *version = 4;
        if (sscanf(v, "%u %31s %u", &nr, remote, version) >= 2 && nr == link) return 1;
    }
    return 0;
}
API ret_t nvmlDeviceGetNvLinkState(device_t d, u32 link, u32 *out) {
    DEVICE("nvmlDeviceGetNvLinkState");
    char remote[32];
    u32 version;
    NEED(value(g, "nvlink"));
    if (link >= 18) LEAVE(INVALID);
    *out = (u32)nvlink(g, link, remote, &version);
    LEAVE(OK);
}
#define LINK(fn, type, answer) \
    API ret_t fn(device_t d, u32 link, type *out) { \
        DEVICE(#fn); \
        char remote[32]; \
        u32 version; \
        NEED(nvlink(g, link, remote, &version)); \
        LEAVE(answer); \
    }
static ret_t remote_pci(const char *remote, pci_info *out) {
    if (!strcmp(remote, "switch")) return pci("0:c0:0", out, NULL);
    if (strchr(remote, ':')) return pci(remote, out, NULL);
    int i = atoi(remote);
    return i < n_gpus && value(i, "pci") ? pci(value(i, "pci"), out, NULL) : INVALID;
}
LINK(nvmlDeviceGetNvLinkVersion, u32, (*out = version, OK))
LINK(nvmlDeviceGetNvLinkRemoteDeviceType, u32, (*out = strcmp(remote, "switch") ? 0 : 2, OK))
LINK(nvmlDeviceGetNvLinkRemotePciInfo_v2, pci_info, remote_pci(remote, out))
API ret_t nvmlDeviceGetP2PStatus(device_t d, device_t other, u32 by, u32 *out) {
    DEVICE("nvmlDeviceGetP2PStatus");
    char remote[32];
    u32 version;
    if (!is_handle(other)) LEAVE(INVALID);
    *out = by == 2; /* over NVLink, 1 is "chipset not supported" */
    for (u32 link = 0; by == 2 && link < 18; link++)
        if (nvlink(g, link, remote, &version) && (!strcmp(remote, "switch") || atoi(remote) == other->gpu)) *out = 0;
    LEAVE(OK);
}
static ret_t bits(int g, const char *key, u32 words, u64 *out) { /* 0-31,64-95 */
    const char *v = value(g, key);
    if (!v) return NOT_SUPPORTED;
    memset(out, 0, words * sizeof *out);
    for (char *end; *v; v = end + (*end == ',')) {
        u64 first = strtoull(v, &end, 10), last = *end == '-' ? strtoull(end + 1, &end, 10) : first;
        for (; first <= last && first / 64 < words; first++) out[first / 64] |= 1ULL << first % 64;
    }
    return OK;
}
API ret_t nvmlDeviceGetCpuAffinity(device_t d, u32 words, u64 *out) {
    DEVICE("nvmlDeviceGetCpuAffinity");
    LEAVE(bits(g, "cpus", words, out));
}
API ret_t nvmlDeviceGetMemoryAffinity(device_t d, u32 words, u64 *out, u32 scope) {
    (void)scope;
    DEVICE("nvmlDeviceGetMemoryAffinity");
    LEAVE(bits(g, "numa", words, out));
}

/* ---- events: each line that is added to the file `events` is one: "gpu type data [gi ci]", or "!NAME", an error ---- */
struct event_set { long at; u64 types[GPUS]; };
static const struct { const char *name; u64 type; } types[] = {
    {"sbe", 1}, {"dbe", 2}, {"xid", 8}, {"unavailable", 0x4000}, {"recovery", 0x8000}, {NULL, 0}};

API ret_t nvmlEventSetCreate(struct event_set **out) {
    SYSTEM("nvmlEventSetCreate");
    struct stat now;
    *out = calloc(1, sizeof **out);
    if (!stat(beside("events"), &now)) (*out)->at = now.st_size; /* what came earlier is not told */
    LEAVE(OK);
}
API ret_t nvmlEventSetFree(struct event_set *set) {
    SYSTEM("nvmlEventSetFree");
    free(set);
    LEAVE(OK);
}
API ret_t nvmlDeviceRegisterEvents(device_t d, u64 wanted, struct event_set *set) {
    DEVICE("nvmlDeviceRegisterEvents");
    const char *v = value(g, "supported_events");
    NEED(m < 0 && v && !(wanted & ~number(v)));
    set->types[g] |= wanted;
    LEAVE(OK);
}
static ret_t parse(struct event_set *set, char *line, event *out) {
    char type[32];
    u32 g;
    line[strcspn(line, "\n")] = 0;
    if (*line == '!') return code_of(line + 1);
    *out = (event){.gi = ~0u, .ci = ~0u};
    if (sscanf(line, "%u %31s %llu %u %u", &g, type, &out->data, &out->gi, &out->ci) < 3 || g >= (u32)n_gpus) return TIMEOUT;
    for (int i = 0; types[i].name; i++) if (!strcmp(types[i].name, type)) out->type = types[i].type;
    out->device = &gpus[g];
    return set->types[g] & out->type ? OK : TIMEOUT;
}
static ret_t next(struct event_set *set, event *out) {
    struct stat now;
    char line[128];
    ret_t r = TIMEOUT;
    if (stat(beside("events"), &now) || now.st_size <= set->at) return TIMEOUT;
    FILE *f = fopen(beside("events"), "r");
    if (!f) return TIMEOUT;
    fseek(f, set->at, SEEK_SET);
    while (r == TIMEOUT && fgets(line, sizeof line, f) && strchr(line, '\n')) {
        set->at = ftell(f);
        r = parse(set, line, out);
    }
    fclose(f);
    return r;
}
API ret_t nvmlEventSetWait_v2(struct event_set *set, event *out, u32 timeout_ms) {
    SYSTEM("nvmlEventSetWait_v2");
    int told = inotify_init1(IN_NONBLOCK | IN_CLOEXEC); /* like a driver's, the wait takes no time of the processor */
    int polls = inotify_add_watch(told, beside("events"), IN_MODIFY) < 0;
    for (u64 end = now_us() + (u64)timeout_ms * 1000;;) { /* the lock is free while it waits */
        u64 now = now_us();
        char seen[4096];
        if ((r = next(set, out)) != TIMEOUT || now >= end) break;
        leave(OK);
        poll(&(struct pollfd){.fd = told, .events = POLLIN}, 1, polls ? 20 : (int)((end - now) / 1000) + 1);
        while (read(told, seen, sizeof seen) > 0) {}
        enter_again();
    }
    close(told);
    LEAVE(r);
}

#define ALIAS(old, new) API __typeof__(new) old __attribute__((alias(#new)));
ALIAS(nvmlEventSetWait, nvmlEventSetWait_v2)
ALIAS(nvmlDeviceGetNvLinkRemotePciInfo, nvmlDeviceGetNvLinkRemotePciInfo_v2)
