/* Reads the facts file: lines of a key and, after a space, a value.
 *
 * Lines before the first `gpu SLOT` are about the node, later ones about that GPU. Some keys of a GPU may come several
 * times and have columns; see the readers below. A file that cannot be understood is reported on standard error.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "stub.h"

static void *grow(void *items, int count, size_t size)
{
    void *grown = realloc(items, (size_t)(count + 1) * size);
    if (grown == NULL)
        abort();
    memset((char *)grown + (size_t)count * size, 0, size);
    return grown;
}

#define APPEND(items, count) (items = grow(items, count, sizeof *(items)), &(items)[(count)++])

/* Cuts the next word off the line; empty at its end. */
static char *word(char **line)
{
    char *start = *line + strspn(*line, " ");
    char *end = start + strcspn(start, " ");
    *line = *end == '\0' ? end : end + 1;
    *end = '\0';
    return start;
}

static long long integer(char **line)
{
    return strtoll(word(line), NULL, 0);
}

static unsigned natural(char **line)
{
    return (unsigned)integer(line);
}

/* Reads `SIZE START,START,...`. */
static void read_placements(char **line, unsigned *size, unsigned *starts, unsigned *count)
{
    *size = natural(line);
    for (char *start = word(line); *start != '\0' && *count < MAX_PLACEMENTS; (*count)++) {
        starts[*count] = (unsigned)strtoul(start, &start, 10);
        start += *start == ',';
    }
}

/* profile INDEX ID SLICES INSTANCES SMS COPY DECODERS ENCODERS JPEGS OFAS MIB P2P CAPABILITIES SIZE STARTS NAME */
static void read_profile(struct gpu *gpu, char *line)
{
    struct profile *profile = APPEND(gpu->profiles, gpu->profiles_count);
    unsigned *columns[] = {
        &profile->index, &profile->id, &profile->slices, &profile->instances, &profile->multiprocessors,
        &profile->copy_engines, &profile->decoders, &profile->encoders, &profile->jpegs, &profile->ofas,
        &profile->memory_mib, &profile->p2p, &profile->capabilities,
    };
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        *columns[i] = natural(&line);
    read_placements(&line, &profile->size, profile->starts, &profile->starts_count);
    profile->name = line;
}

/* compute GPU_PROFILE INDEX ID SLICES INSTANCES SMS SIZE STARTS NAME */
static void read_compute_profile(struct gpu *gpu, char *line)
{
    struct compute_profile *profile = APPEND(gpu->compute_profiles, gpu->compute_profiles_count);
    profile->gpu_profile = natural(&line);
    profile->index = natural(&line);
    profile->id = natural(&line);
    profile->slices = natural(&line);
    profile->instances = natural(&line);
    profile->multiprocessors = natural(&line);
    read_placements(&line, &profile->size, profile->starts, &profile->starts_count);
    profile->name = line;
}

/* process KIND PID BYTES GPU_INSTANCE COMPUTE_INSTANCE, with -1 for no instance */
static void read_process(struct gpu *gpu, char *line)
{
    struct process *process = APPEND(gpu->processes, gpu->processes_count);
    process->kind = *word(&line);
    process->pid = natural(&line);
    process->bytes = (unsigned long long)integer(&line);
    process->gpu_instance = natural(&line);
    process->compute_instance = natural(&line);
}

/* field ID SCOPE TYPE VALUE */
static void read_field(struct gpu *gpu, char *line)
{
    struct field *field = APPEND(gpu->fields, gpu->fields_count);
    field->id = natural(&line);
    field->scope = natural(&line);
    field->type = natural(&line);
    field->value = integer(&line);
}

/* nvlink NUMBER ACTIVE VERSION REMOTE_TYPE REMOTE_BUS_ID */
static void read_nvlink(struct gpu *gpu, char *line)
{
    struct nvlink *link = APPEND(gpu->nvlinks, gpu->nvlinks_count);
    link->number = natural(&line);
    link->active = natural(&line);
    link->version = natural(&line);
    link->remote_type = natural(&line);
    link->remote = word(&line);
}

/* answer FUNCTION CODE */
static void read_answer(struct gpu *gpu, char *line)
{
    struct answer *answer = APPEND(gpu->answers, gpu->answers_count);
    answer->function = word(&line);
    answer->code = (nvmlReturn_t)integer(&line);
}

static const struct {
    const char *key;
    void (*read)(struct gpu *, char *);
} readers[] = {
    {"answer", read_answer},
    {"compute", read_compute_profile},
    {"field", read_field},
    {"nvlink", read_nvlink},
    {"process", read_process},
    {"profile", read_profile},
};

static void read_fact(struct table *table, const char *key, char *value)
{
    struct fact *fact = APPEND(table->facts, table->count);
    char *end;
    fact->key = key;
    fact->text = value;
    errno = 0;
    fact->number = strtoll(value, &end, 0);
    fact->is_number = errno == 0 && end != value && *end == '\0';
}

static void read_line(struct facts *facts, char *line)
{
    char *key = word(&line);
    if (strcmp(key, "gpu") == 0) {
        struct gpu *gpu = APPEND(facts->gpus, facts->gpus_count);
        gpu->slot = (int)integer(&line);
        return;
    }
    if (facts->gpus_count == 0) {
        read_fact(&facts->node, key, line);
        return;
    }
    struct gpu *gpu = &facts->gpus[facts->gpus_count - 1];
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++)
        if (strcmp(key, readers[i].key) == 0) {
            readers[i].read(gpu, line);
            return;
        }
    read_fact(&gpu->table, key, line);
}

static int by_key(const void *one, const void *other)
{
    return strcmp(((const struct fact *)one)->key, ((const struct fact *)other)->key);
}

static void sort(struct table *table)
{
    if (table->count > 0)
        qsort(table->facts, (size_t)table->count, sizeof *table->facts, by_key);
}

static char *read_file(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0) {
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    size_t size = (size_t)status.st_size, done = 0;
    char *text = malloc(size + 1);
    while (text != NULL && done < size) {
        ssize_t got = read(fd, text + done, size - done);
        if (got <= 0)
            break;
        done += (size_t)got;
    }
    close(fd);
    if (text != NULL)
        text[done] = '\0';
    return text;
}

struct facts *facts_load(const char *path)
{
    struct facts *facts = calloc(1, sizeof *facts);
    if (facts == NULL || (facts->text = read_file(path)) == NULL) {
        fprintf(stderr, "nvml stub: %s: %s\n", path, strerror(errno));
        free(facts);
        return NULL;
    }
    for (char *line = facts->text; *line != '\0';) {
        char *end = line + strcspn(line, "\n");
        char *next = *end == '\0' ? end : end + 1;
        *end = '\0';
        if (*line != '\0' && *line != '#')
            read_line(facts, line);
        line = next;
    }
    sort(&facts->node);
    for (int i = 0; i < facts->gpus_count; i++) {
        sort(&facts->gpus[i].table);
        if (facts->gpus[i].slot < 0 || facts->gpus[i].slot >= MAX_GPUS) {
            fprintf(stderr, "nvml stub: %s: GPU slot %d is not in 0..%d\n", path, facts->gpus[i].slot, MAX_GPUS - 1);
            facts_free(facts);
            return NULL;
        }
    }
    return facts;
}

void facts_free(struct facts *facts)
{
    if (facts == NULL)
        return;
    for (int i = 0; i < facts->gpus_count; i++) {
        struct gpu *gpu = &facts->gpus[i];
        free(gpu->table.facts);
        free(gpu->profiles);
        free(gpu->compute_profiles);
        free(gpu->processes);
        free(gpu->fields);
        free(gpu->nvlinks);
        free(gpu->answers);
    }
    free(facts->gpus);
    free(facts->node.facts);
    free(facts->text);
    free(facts);
}

static const struct fact *find(const struct table *table, const char *key)
{
    struct fact wanted = {.key = key};
    if (table->count == 0)
        return NULL;
    return bsearch(&wanted, table->facts, (size_t)table->count, sizeof wanted, by_key);
}

const char *fact_text(const struct table *table, const char *key)
{
    const struct fact *fact = find(table, key);
    return fact == NULL ? NULL : fact->text;
}

nvmlReturn_t fact_number(const struct table *table, const char *key, long long *number)
{
    const struct fact *fact = find(table, key);
    if (fact == NULL || !fact->is_number)
        return NVML_ERROR_NOT_SUPPORTED;
    *number = fact->number;
    return NVML_SUCCESS;
}

long long fact_or(const struct table *table, const char *key, long long otherwise)
{
    long long number;
    return fact_number(table, key, &number) == NVML_SUCCESS ? number : otherwise;
}
