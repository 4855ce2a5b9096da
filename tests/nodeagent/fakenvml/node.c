/* The description of the node: read when it changed, looked up by every call; errors and delays on demand. */
#include "fake.h"
#include <dlfcn.h>
#include <strings.h>
#include <sys/stat.h>
#include <time.h>

struct device gpus[GPUS], migs[GPUS][MIGS];
int n_gpus, references;

struct line { char *key, *value; int order; };
struct section { struct line *lines; int n; };
static struct section system_, defaults, topology, cards[GPUS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stat last;
static int loaded, traced;

static const struct { const char *name; int code; } codes[] = {
    {"UNINITIALIZED", 1}, {"INVALID_ARGUMENT", 2}, {"NOT_SUPPORTED", 3}, {"NO_PERMISSION", 4}, {"NOT_FOUND", 6},
    {"INSUFFICIENT_SIZE", 7}, {"DRIVER_NOT_LOADED", 9}, {"TIMEOUT", 10}, {"LIBRARY_NOT_FOUND", 12},
    {"FUNCTION_NOT_FOUND", 13}, {"GPU_IS_LOST", 15}, {"RESET_REQUIRED", 16}, {"LIB_RM_VERSION_MISMATCH", 18},
    {"IN_USE", 19}, {"MEMORY", 20}, {"ARGUMENT_VERSION_MISMATCH", 25}, {"UNKNOWN", 999}, {NULL, 0}};

const char *beside(const char *name) { /* called with the lock held */
    static char path[4096];
    static size_t directory;
    Dl_info here;
    if (!*path && dladdr((void *)&last, &here)) {
        const char *slash = strrchr(here.dli_fname, '/');
        directory = slash ? (size_t)(slash + 1 - here.dli_fname) : 0;
        snprintf(path, sizeof path, "%s", here.dli_fname);
    }
    snprintf(path + directory, sizeof path - directory, "%s", name);
    return path;
}

u64 now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (u64)t.tv_sec * 1000000 + (u64)t.tv_nsec / 1000;
}

static char *trim(char *s) {
    s += strspn(s, " \t");
    char *end = s + strlen(s);
    while (end > s && strchr(" \t\r\n", end[-1])) *--end = 0;
    return s;
}

static int in_order(const void *a, const void *b) {
    const struct line *x = a, *y = b;
    int by_key = strcmp(x->key, y->key);
    return by_key ? by_key : x->order - y->order;
}

static void forget(struct section *s) {
    for (int i = 0; i < s->n; i++) free(s->lines[i].key), free(s->lines[i].value);
    free(s->lines);
    *s = (struct section){0};
}

static struct section *begin(const char *name) {
    if (!strcmp(name, "system")) return &system_;
    if (!strcmp(name, "defaults")) return &defaults;
    if (!strcmp(name, "topology")) return &topology;
    if (n_gpus == GPUS) abort();
    int g = n_gpus++;
    gpus[g] = (struct device){g, -1};
    for (int m = 0; m < MIGS; m++) migs[g][m] = (struct device){g, m};
    return &cards[g];
}

static void load(void) {
    struct stat now;
    if (stat(beside("node.ini"), &now)) return;
    if (loaded && now.st_size == last.st_size && now.st_ino == last.st_ino &&
        !memcmp(&now.st_mtim, &last.st_mtim, sizeof now.st_mtim))
        return;
    FILE *f = fopen(beside("node.ini"), "r");
    if (!f) return;
    last = now, loaded = 1, n_gpus = 0, traced = !access(beside("trace"), W_OK);
    forget(&system_), forget(&defaults), forget(&topology);
    for (int g = 0; g < GPUS; g++) forget(&cards[g]);
    struct section *s = &system_;
    char buffer[4096], *eq;
    while (fgets(buffer, sizeof buffer, f)) {
        char *l = trim(buffer);
        if (!*l || *l == '#') continue;
        if (*l == '[') {
            l[strcspn(l, "]")] = 0;
            s = begin(l + 1);
        } else if ((eq = strchr(l, '='))) {
            *eq = 0;
            s->lines = realloc(s->lines, (size_t)(s->n + 1) * sizeof *s->lines);
            s->lines[s->n] = (struct line){strdup(trim(l)), strdup(trim(eq + 1)), s->n};
            s->n++;
        }
    }
    fclose(f);
    struct section *all[] = {&system_, &defaults, &topology};
    for (int i = 0; i < 3; i++) if (all[i]->n) qsort(all[i]->lines, (size_t)all[i]->n, sizeof *s->lines, in_order);
    for (int g = 0; g < n_gpus; g++) if (cards[g].n) qsort(cards[g].lines, (size_t)cards[g].n, sizeof *s->lines, in_order);
}

static const char *find(const struct section *s, const char *key, int n) {
    int low = 0, high = s->n;
    while (low < high) {
        int mid = (low + high) / 2;
        if (strcmp(s->lines[mid].key, key) < 0) low = mid + 1; else high = mid;
    }
    return low + n < s->n && !strcmp(s->lines[low + n].key, key) ? s->lines[low + n].value : NULL;
}

const char *system_value(const char *key) { return find(&system_, key, 0); }
const char *topology_value(const char *key) { return find(&topology, key, 0); }
const char *nth_value(int gpu, const char *key, int n) {
    return find(find(&cards[gpu], key, 0) ? &cards[gpu] : &defaults, key, n);
}
const char *value(int gpu, const char *key) { return nth_value(gpu, key, 0); }

u64 number(const char *s) {
    char *end;
    u64 n = strtoull(s, &end, 0);
    return !strcmp(end, "Gi") ? n << 30 : !strcmp(end, "Mi") ? n << 20 : n;
}
int code_of(const char *name) {
    for (int i = 0; codes[i].name; i++) if (!strcasecmp(name, codes[i].name)) return codes[i].code;
    return atoi(name);
}
int has_description(void) { return loaded && n_gpus >= 0 && !access(beside("node.ini"), R_OK); }

/* error.<function> = NAME answers that; error.* = NAME on a card fails every call on it;
 * delay_ms.<function> = N makes the call slow, and only that call: the lock is free meanwhile. */
static const char *fault(const struct section *s, const char *kind, const char *function) {
    char key[160];
    snprintf(key, sizeof key, "%s.%s", kind, function);
    return find(s, key, 0);
}
static ret_t demanded(const struct section *s, const char *function) {
    const char *v = fault(s, "delay_ms", function);
    if (v) {
        u64 us = number(v) * 1000;
        pthread_mutex_unlock(&lock);
        usleep((useconds_t)us);
        enter_again();
    }
    if ((v = fault(s, "error", function))) return code_of(v);
    return (v = find(s, "error.*", 0)) ? code_of(v) : OK;
}
ret_t forced(int gpu, const char *function) {
    ret_t r = demanded(&defaults, function);
    if (!r && gpu < n_gpus) r = demanded(&cards[gpu], function);
    return r;
}

static void trace(const char *function) {
    FILE *f = traced ? fopen(beside("trace"), "a") : NULL;
    if (f) fprintf(f, "%s\n", function), fclose(f);
}

int is_handle(device_t d) {
    return (d >= gpus && d < gpus + n_gpus) || (d >= &migs[0][0] && d < &migs[0][0] + n_gpus * MIGS);
}
ret_t enter(const char *function, int wants_init) {
    pthread_mutex_lock(&lock);
    load(), trace(function);
    return wants_init && !references ? UNINITIALIZED : demanded(&system_, function);
}
ret_t enter_device(const char *function, device_t d) {
    ret_t r = enter(function, 1);
    if (!r && !is_handle(d)) r = INVALID;
    if (!r) r = forced(d->gpu, function);
    return r || is_handle(d) ? r : INVALID; /* the card may have gone while the call was slow */
}
void enter_again(void) {
    pthread_mutex_lock(&lock);
    load();
}
ret_t leave(ret_t ret) {
    pthread_mutex_unlock(&lock);
    return ret;
}

API const char *nvmlErrorString(ret_t code) {
    for (int i = 0; codes[i].name; i++) if (codes[i].code == code) return codes[i].name;
    return code ? "Unknown Error" : "Success";
}
ret_t text(char *out, u32 length, const char *from) {
    if (strlen(from) + 1 > length) return TOO_SMALL;
    strcpy(out, from);
    return OK;
}
