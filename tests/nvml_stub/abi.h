/* The part of NVML's binary interface that the stub speaks: codes, structures, versions.
 *
 * Layouts are those that the binding (pynvml, of the distribution nvidia-ml-py) and NVIDIA's nvml.h agree upon. Only
 * what some function of the stub needs is here.
 */
#ifndef NVML_STUB_ABI_H
#define NVML_STUB_ABI_H

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_IN_USE = 19,
    NVML_ERROR_INSUFFICIENT_RESOURCES = 23,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
} nvmlReturn_t;

typedef struct nvmlDevice *nvmlDevice_t;
typedef struct nvmlGpuInstance *nvmlGpuInstance_t;
typedef struct nvmlComputeInstance *nvmlComputeInstance_t;
typedef struct nvmlEventSet *nvmlEventSet_t;

#define NO_INSTANCE 0xFFFFFFFFu     /* "no GPU instance", "no compute instance" in events and process lists */
#define NAME_SIZE 96
#define BUS_ID_SIZE 32
#define LEGACY_BUS_ID_SIZE 16
#define UUID_SIZE 80
#define FABRIC_UUID_SIZE 16

/* A versioned structure begins with its size and, in the highest byte, its version. */
#define STRUCT_VERSION(type, version) ((unsigned)sizeof(type) | (version) << 24)

/* --- identity ---------------------------------------------------------------------------------------------------- */

typedef struct {
    char busIdLegacy[LEGACY_BUS_ID_SIZE];
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pciDeviceId;
    unsigned pciSubSystemId;
    char busId[BUS_ID_SIZE];
} nvmlPciInfo_t;

typedef struct {
    unsigned version;
    unsigned domain;
    unsigned bus;
    unsigned device;
    unsigned pciDeviceId;
    unsigned pciSubSystemId;
    unsigned baseClass;
    unsigned subClass;
    char busId[BUS_ID_SIZE];
} nvmlPciInfoExt_v1_t;

typedef struct {
    nvmlPciInfo_t pciInfo;
    char uuid[UUID_SIZE];
} nvmlExcludedDeviceInfo_t;

#define UUID_TYPE_ASCII 1
#define UUID_TYPE_BINARY 2

typedef struct {
    unsigned version;
    unsigned type;
    union {
        char str[41];
        unsigned char bytes[16];
    } value;
} nvmlUUID_t;

/* Several versioned structures hold one number. */
typedef struct {
    unsigned version;
    unsigned value;
} versioned_unsigned_t;

typedef struct {
    unsigned version;
    unsigned long long value;
} nvmlPdi_t;

typedef struct {
    unsigned version;
    char ibGuid[16];
    char chassisSerialNumber[16];
    unsigned char slotNumber;
    unsigned char trayIndex;
    unsigned char hostId;
    unsigned char peerType;
    unsigned char moduleId;
} nvmlPlatformInfo_t;       /* version 1 has the same layout under other names */

typedef struct {
    unsigned version;
    char branch[80];
} nvmlSystemDriverBranchInfo_t;

/* --- memory and health ------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_t;             /* the layout of nvmlBAR1Memory_t too */

typedef struct {
    unsigned version;
    unsigned long long total;
    unsigned long long reserved;
    unsigned long long free;
    unsigned long long used;
} nvmlMemory_v2_t;

typedef struct {
    unsigned gpu;
    unsigned memory;
} nvmlUtilization_t;

typedef struct {
    unsigned version;
    unsigned sensorType;
    int temperature;
} nvmlTemperature_t;

typedef struct {
    unsigned max;
    unsigned high;
    unsigned partial;
    unsigned low;
    unsigned none;
} nvmlRowRemapperHistogramValues_t;

typedef struct {
    unsigned corrActiveRemaps;
    unsigned corrInactiveRemaps;
    unsigned uncActiveRemaps;
    unsigned uncInactiveRemaps;
    unsigned bPending;
    unsigned bFailureOccurred;
} nvmlRemappedRowsInfo_v2_t;

typedef struct {
    unsigned version;
    unsigned bChannelRepairPending;
    unsigned bTpcRepairPending;
} nvmlRepairStatus_t;

typedef struct {
    unsigned version;
    unsigned long long aggregateUncParity;
    unsigned long long aggregateUncSecDed;
    unsigned long long aggregateCor;
    unsigned long long volatileUncParity;
    unsigned long long volatileUncSecDed;
    unsigned long long volatileCor;
    unsigned long long aggregateUncBucketL2;
    unsigned long long aggregateUncBucketSm;
    unsigned long long aggregateUncBucketPcie;
    unsigned long long aggregateUncBucketMcu;
    unsigned long long aggregateUncBucketOther;
    unsigned bThresholdExceeded;
} nvmlEccSramErrorStatus_t;

typedef struct {
    unsigned fieldId;
    unsigned scopeId;
    long long timestamp;
    long long latencyUsec;
    unsigned valueType;
    unsigned nvmlReturn;
    unsigned long long value;
} nvmlFieldValue_t;

typedef struct {
    unsigned char clusterUuid[FABRIC_UUID_SIZE];
    unsigned status;
    unsigned cliqueId;
    unsigned state;
} nvmlGpuFabricInfo_t;

typedef struct {
    unsigned version;
    unsigned char clusterUuid[FABRIC_UUID_SIZE];
    unsigned status;
    unsigned cliqueId;
    unsigned state;
    unsigned healthMask;
} nvmlGpuFabricInfo_v2_t;

typedef struct {
    unsigned version;
    unsigned char clusterUuid[FABRIC_UUID_SIZE];
    unsigned status;
    unsigned cliqueId;
    unsigned state;
    unsigned healthMask;
    unsigned char healthSummary;
} nvmlGpuFabricInfo_v3_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType;
    unsigned long long eventData;
    unsigned gpuInstanceId;
    unsigned computeInstanceId;
} nvmlEventData_t;

/* --- processes --------------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId;
    unsigned computeInstanceId;
} nvmlProcessInfo_t;        /* versions 2 and 3 */

typedef struct {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId;
    unsigned computeInstanceId;
    unsigned long long usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;

typedef struct {
    unsigned version;
    unsigned mode;
    unsigned numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_t;

/* --- MIG --------------------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned start;
    unsigned size;
} nvmlPlacement_t;          /* of memory slices for GPU instances, of compute slices for compute instances */

typedef struct {
    unsigned id;
    unsigned isP2pSupported;
    unsigned sliceCount;
    unsigned instanceCount;
    unsigned multiprocessorCount;
    unsigned copyEngineCount;
    unsigned decoderCount;
    unsigned encoderCount;
    unsigned jpegCount;
    unsigned ofaCount;
    unsigned long long memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    unsigned version;
    unsigned id;
    unsigned isP2pSupported;
    unsigned sliceCount;
    unsigned instanceCount;
    unsigned multiprocessorCount;
    unsigned copyEngineCount;
    unsigned decoderCount;
    unsigned encoderCount;
    unsigned jpegCount;
    unsigned ofaCount;
    unsigned long long memorySizeMB;
    char name[NAME_SIZE];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
    unsigned version;
    unsigned id;
    unsigned sliceCount;
    unsigned instanceCount;
    unsigned multiprocessorCount;
    unsigned copyEngineCount;
    unsigned decoderCount;
    unsigned encoderCount;
    unsigned jpegCount;
    unsigned ofaCount;
    unsigned long long memorySizeMB;
    char name[NAME_SIZE];
    unsigned capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;

typedef struct {
    nvmlDevice_t device;
    unsigned id;
    unsigned profileId;
    nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    unsigned id;
    unsigned sliceCount;
    unsigned instanceCount;
    unsigned multiprocessorCount;
    unsigned sharedCopyEngineCount;
    unsigned sharedDecoderCount;
    unsigned sharedEncoderCount;
    unsigned sharedJpegCount;
    unsigned sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
    unsigned version;
    nvmlComputeInstanceProfileInfo_t profile;
    char name[NAME_SIZE];
} nvmlComputeInstanceProfileInfo_v2_t;

typedef struct {
    unsigned version;
    nvmlComputeInstanceProfileInfo_t profile;
    char name[NAME_SIZE];
    unsigned capabilities;
} nvmlComputeInstanceProfileInfo_v3_t;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned id;
    unsigned profileId;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    unsigned id;
    unsigned profileId;
} nvmlComputeInstanceInfo_v1_t;

typedef struct {
    unsigned multiprocessorCount;
    unsigned sharedCopyEngineCount;
    unsigned sharedDecoderCount;
    unsigned sharedEncoderCount;
    unsigned sharedJpegCount;
    unsigned sharedOfaCount;
    unsigned gpuInstanceSliceCount;
    unsigned computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

/* Sizes as the binding has them in its version constants. */
_Static_assert(STRUCT_VERSION(nvmlGpuInstanceProfileInfo_v2_t, 2) == 0x02000098, "layout");
_Static_assert(STRUCT_VERSION(nvmlComputeInstanceProfileInfo_v2_t, 2) == 0x02000088, "layout");
_Static_assert(STRUCT_VERSION(nvmlMemory_v2_t, 2) == 0x02000028, "layout");
_Static_assert(STRUCT_VERSION(nvmlEccSramErrorStatus_t, 1) == 0x01000068, "layout");
_Static_assert(STRUCT_VERSION(nvmlGpuFabricInfo_v2_t, 2) == 0x02000024, "layout");
_Static_assert(STRUCT_VERSION(nvmlGpuFabricInfo_v3_t, 3) == 0x03000028, "layout");
_Static_assert(STRUCT_VERSION(nvmlPlatformInfo_t, 2) == 0x0200002c, "layout");
_Static_assert(STRUCT_VERSION(nvmlPciInfoExt_v1_t, 1) == 0x01000040, "layout");
_Static_assert(STRUCT_VERSION(nvmlUUID_t, 1) == 0x01000034, "layout");
_Static_assert(STRUCT_VERSION(nvmlProcessDetailList_t, 1) == 0x01000018, "layout");

#endif
