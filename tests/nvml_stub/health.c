/* What is wrong with a GPU: ECC counters, remapped rows and retired pages, repairs, field values. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "stub.h"

/* --- ECC --------------------------------------------------------------------------------------------------------- */

API(450) nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(current != NULL && pending != NULL);
    nvmlReturn_t code = give_number(&call, "ecc-mode", current);
    if (code == NVML_SUCCESS)
        *pending = (unsigned)fact_or(&call.gpu->table, "ecc-mode-pending", *current);
    return leave(&call, code);
}

NUMBER(515, nvmlDeviceGetDefaultEccMode, "ecc-mode-default")

/* Facts: ecc-corrected, ecc-uncorrected (volatile), ecc-corrected-aggregate, ecc-uncorrected-aggregate. */
static nvmlReturn_t ecc_count(const struct call *call, unsigned type, unsigned counter, unsigned long long *count)
{
    static const char *const keys[2][2] = {
        {"ecc-corrected", "ecc-corrected-aggregate"},
        {"ecc-uncorrected", "ecc-uncorrected-aggregate"},
    };
    long long number;
    if (count == NULL || type > 1 || counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (fact_or(&call->gpu->table, "ecc-mode", 0) == 0)
        return NVML_ERROR_NOT_SUPPORTED;
    nvmlReturn_t code = fact_number(&call->gpu->table, keys[type][counter], &number);
    if (code == NVML_SUCCESS)
        *count = (unsigned long long)number;
    return code;
}

API(450) nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned type, unsigned counter,
                                                  unsigned long long *count)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    return leave(&call, ecc_count(&call, type, counter, count));
}

/* All errors are in device memory (location 2); the other locations that exist have none. */
API(450) nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, unsigned type, unsigned counter,
                                                      unsigned location, unsigned long long *count)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(location <= 7);
    nvmlReturn_t code = ecc_count(&call, type, counter, count);
    if (code == NVML_SUCCESS && location != 2)
        *count = 0;
    return leave(&call, code);
}

API(550) nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status)
{
    unsigned exceeded;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(status != NULL);
    if (status->version != STRUCT_VERSION(nvmlEccSramErrorStatus_t, 1u))
        return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlReturn_t code = give_number(&call, "sram-threshold-exceeded", &exceeded);
    if (code == NVML_SUCCESS) {
        memset(status, 0, sizeof *status);
        status->version = STRUCT_VERSION(nvmlEccSramErrorStatus_t, 1u);
        status->aggregateUncSecDed = (unsigned long long)fact_or(&call.gpu->table, "sram-uncorrected", 0);
        status->volatileUncSecDed = status->aggregateUncSecDed;
        status->bThresholdExceeded = exceeded;
    }
    return leave(&call, code);
}

/* --- rows and pages ---------------------------------------------------------------------------------------------- */

struct rows {
    unsigned corrected, uncorrected, pending, failure;
};

/* Not answered while GPU instances are there. */
static nvmlReturn_t read_rows(const struct call *call, struct rows *rows)
{
    const struct table *table = &call->gpu->table;
    nvmlReturn_t code = give_number(call, "rows-corrected", &rows->corrected);
    for (int id = 0; id < MAX_GPU_INSTANCES; id++)
        if (call->state->gi[id].live)
            return NVML_ERROR_NOT_SUPPORTED;
    rows->uncorrected = (unsigned)fact_or(table, "rows-uncorrected", 0);
    rows->pending = (unsigned)fact_or(table, "rows-pending", 0);
    rows->failure = (unsigned)fact_or(table, "rows-failure", 0);
    return code;
}

API(450) nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected, unsigned *uncorrected,
                                                unsigned *pending, unsigned *failure)
{
    struct rows rows;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(corrected != NULL && uncorrected != NULL && pending != NULL && failure != NULL);
    nvmlReturn_t code = read_rows(&call, &rows);
    if (code == NVML_SUCCESS) {
        *corrected = rows.corrected;
        *uncorrected = rows.uncorrected;
        *pending = rows.pending;
        *failure = rows.failure;
    }
    return leave(&call, code);
}

API(595) nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t device, nvmlRemappedRowsInfo_v2_t *info)
{
    struct rows rows;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(info != NULL);
    nvmlReturn_t code = read_rows(&call, &rows);
    if (code == NVML_SUCCESS) {
        memset(info, 0, sizeof *info);
        info->corrActiveRemaps = rows.corrected;
        info->uncActiveRemaps = rows.uncorrected;
        info->bPending = rows.pending;
        info->bFailureOccurred = rows.failure;
    }
    return leave(&call, code);
}

API(455) nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values)
{
    struct rows rows;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(values != NULL);
    nvmlReturn_t code = read_rows(&call, &rows);
    if (code == NVML_SUCCESS) {
        memset(values, 0, sizeof *values);
        values->none = rows.failure;
        values->high = rows.corrected + rows.uncorrected;
        values->max = 640 - values->none - values->high;
    }
    return leave(&call, code);
}

/* Causes: 0 several single-bit errors, 1 a double-bit error. No addresses are made up: pages are 4 KiB apart from 0. */
static nvmlReturn_t retired_pages(const struct call *call, unsigned cause, unsigned *count, unsigned long long *pages)
{
    static const char *const keys[] = {"retired-single-bit", "retired-double-bit"};
    unsigned retired;
    if (count == NULL || cause > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t code = give_number(call, keys[cause], &retired);
    if (code != NVML_SUCCESS)
        return code;
    bool fits = *count >= retired && (pages != NULL || retired == 0);
    *count = retired;
    if (!fits)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < retired; i++)
        pages[i] = 4096ULL * i;
    return NVML_SUCCESS;
}

API(450) nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, unsigned cause, unsigned *count,
                                                unsigned long long *pages)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    return leave(&call, retired_pages(&call, cause, count, pages));
}

API(450) nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, unsigned cause, unsigned *count,
                                                   unsigned long long *pages, unsigned long long *times)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    nvmlReturn_t code = retired_pages(&call, cause, count, pages);
    if (code == NVML_SUCCESS && times != NULL)
        memset(times, 0, *count * sizeof *times);
    return leave(&call, code);
}

NUMBER(450, nvmlDeviceGetRetiredPagesPendingStatus, "retired-pending")

API(580) nvmlReturn_t nvmlDeviceGetRepairStatus(nvmlDevice_t device, nvmlRepairStatus_t *status)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(status != NULL);
    if (status->version != STRUCT_VERSION(nvmlRepairStatus_t, 1u))
        return leave(&call, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlReturn_t code = give_number(&call, "channel-repair-pending", &status->bChannelRepairPending);
    status->bTpcRepairPending = (unsigned)fact_or(&call.gpu->table, "tpc-repair-pending", 0);
    return leave(&call, code);
}

API(590) nvmlReturn_t nvmlDeviceGetUnrepairableMemoryFlag_v1(nvmlDevice_t device, versioned_unsigned_t *flag)
{
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(flag != NULL);
    return leave(&call, give_number(&call, "unrepairable-memory", &flag->value));
}

/* --- field values ------------------------------------------------------------------------------------------------ */

static const struct field *field_of(const struct gpu *gpu, unsigned id, unsigned scope)
{
    for (int i = 0; i < gpu->fields_count; i++)
        if (gpu->fields[i].id == id && gpu->fields[i].scope == scope)
            return &gpu->fields[i];
    return NULL;
}

/* The call succeeds whatever the fields answer; ids that a driver does not know yet are invalid arguments. */
API(450) nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    struct timespec time;
    ENTER(begin_gpu, device, GPU_ONLY);
    REQUIRE(values != NULL && count > 0);
    clock_gettime(CLOCK_REALTIME, &time);
    for (int i = 0; i < count; i++) {
        const struct field *field = field_of(call.gpu, values[i].fieldId, values[i].scopeId);
        bool known = values[i].fieldId < fact_or(&call.facts->node, "fields", 0);
        values[i].timestamp = (long long)time.tv_sec * 1000000 + time.tv_nsec / 1000;
        values[i].latencyUsec = 0;
        values[i].nvmlReturn = !known          ? NVML_ERROR_INVALID_ARGUMENT
                               : field == NULL ? NVML_ERROR_NOT_SUPPORTED
                                               : NVML_SUCCESS;
        if (known && field != NULL) {
            values[i].valueType = field->type;
            values[i].value = (unsigned long long)field->value;
        }
    }
    return leave(&call, NVML_SUCCESS);
}
