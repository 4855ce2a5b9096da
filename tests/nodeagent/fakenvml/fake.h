/* A stand-in for libnvidia-ml.so.1 that a text file drives; __init__.py says how.
 *
 * The layouts below are NVML's, written down anew; a test compares their sizes with those of the Python bindings.
 * An entry point takes the lock, reads the description again if it changed, and leaves by LEAVE. A key that the
 * description lacks makes the call answer NOT_SUPPORTED, as a driver does for what a board does not have.
 */
#pragma once
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
typedef int ret_t;
typedef struct device *device_t;
#define API __attribute__((visibility("default")))

enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6, TOO_SMALL = 7,
    NO_DRIVER = 9, TIMEOUT = 10, WRONG_VERSION = 25, UNKNOWN = 999
};

typedef struct { u64 total, free, used; } memory_v1;
typedef struct { u32 version; u64 total, reserved, free, used; } memory_v2;
typedef struct { u32 pid; u64 used; } process_v1;
typedef struct { u32 pid; u64 used; u32 gi, ci; } process_v2; /* _v2 and _v3 */
typedef struct { u32 pid; u64 used; u32 gi, ci; u64 protected; } process_detail;
typedef struct { u32 version, mode, n; process_detail *list; } process_details;
typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } pci_info;
typedef struct { u32 sm, ce, dec, enc, jpg, ofa, gi_slices, ci_slices; u64 memory_mib; } attributes;
typedef struct { u32 id, p2p, slices, instances, sm, ce, dec, enc, jpg, ofa; u64 memory_mib; } profile_v1;
typedef struct {
    u32 version, id, p2p, slices, instances, sm, ce, dec, enc, jpg, ofa;
    u64 memory_mib;
    char name[96];
} profile_v2;
typedef struct { u32 start, size; } placement;
typedef struct { device_t device; u32 id, profile; placement where; } gi_info;
typedef struct {
    u32 field, scope;
    long long at, latency;
    u32 type;
    int ret;
    union { double d; u64 u; } value;
} field_value;
typedef struct { u32 pid; u64 at; u32 sm, mem, enc, dec; } sample_v1;
typedef struct { u64 at; u32 pid, sm, mem, enc, dec, jpg, ofa; } sample_v2;
typedef struct { u32 version, n; u64 since; sample_v2 *list; } samples_v2;
typedef struct { u32 version, sensor; int celsius; } temperature_v1;
typedef struct { device_t device; u64 type, data; u32 gi, ci; } event;
typedef struct { const char *cgroup; u64 soft, hard; } limits_set;
typedef struct { const char *cgroup; u64 soft, hard, used; } limits_get;

#define GPUS 32
#define MIGS 8
struct device { int gpu, mig; }; /* mig < 0: the whole card */
extern struct device gpus[GPUS], migs[GPUS][MIGS]; /* handles outlive a new description */
extern int n_gpus, references;

/* A MIG device: uuid gi ci profile start size slices sm memory_mib used_mib */
struct mig { char uuid[96]; u32 gi, ci, profile, start, size, slices, sm; u64 memory_mib, used_mib; };
/* A process: pid used_mib (-1: not told) kind (C, G or M) sm mem [gi ci] */
struct process { u32 pid; long long mib; char kind; u32 sm, mem, gi, ci; };

const char *beside(const char *name);                  /* the path of a file next to the library, until called again */
const char *system_value(const char *key);
const char *topology_value(const char *key);
const char *value(int gpu, const char *key);           /* the card's, else the default */
const char *nth_value(int gpu, const char *key, int n); /* of a key that may stand on several lines */
u64 number(const char *text);                          /* 7, 0x1f, 80Gi, 512Mi */
int code_of(const char *name);
u64 now_us(void);
int has_description(void);
ret_t enter(const char *function, int wants_init);
ret_t enter_device(const char *function, device_t d);
ret_t leave(ret_t ret);
void enter_again(void);                                /* after a leave inside of a call */
ret_t forced(int gpu, const char *function);
int is_handle(device_t d);
int mig_on(int gpu);
int mig_device(int gpu, int n, struct mig *out);
int profile(int gpu, int by_id, u32 wanted, profile_v2 *out, placement *places, u32 *n);
ret_t text(char *out, u32 length, const char *from);
ret_t pci(const char *from, pci_info *out, const char *id);
int processes(int gpu, int mig, char kind, struct process *out, int max);

#define LEAVE(ret) return leave(ret)
#define SYSTEM(fn) ret_t r = enter(fn, 1); if (r) LEAVE(r)
#define DEVICE(fn) ret_t r = enter_device(fn, d); if (r) LEAVE(r); const int g = d->gpu, m = d->mig; (void)g, (void)m
#define NEED(v) if (!(v)) LEAVE(NOT_SUPPORTED)
#define VERSION(out, n) if ((out)->version != (sizeof *(out) | (u32)(n) << 24)) LEAVE(WRONG_VERSION)
#define ROOT() if (system_value("privileged") && !number(system_value("privileged"))) LEAVE(NO_PERMISSION)
/* a getter with one number for an answer; `whole`: MIG devices do not have it */
#define NUMBER(fn, key, type, whole) \
    API ret_t fn(device_t d, type *out) { \
        DEVICE(#fn); \
        const char *v = value(g, key); \
        NEED(v && !(whole && m >= 0)); \
        *out = (type)number(v); \
        LEAVE(OK); \
    }
