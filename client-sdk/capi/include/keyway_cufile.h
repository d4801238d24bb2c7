/* The client in the shape of cuFile: a program that uses cuFile moves by renaming `cuFile` to
 * `kwFile` and `CUfile` to `KWfile`, and by naming objects instead of descriptors. See docs/c.md
 * for what differs. Link with libkeyway.
 */
#ifndef KEYWAY_CUFILE_H
#define KEYWAY_CUFILE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "keyway.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum KWfileOpError {
    KW_FILE_SUCCESS = 0,
    KW_FILE_DRIVER_NOT_INITIALIZED = 5001,
    KW_FILE_DRIVER_ALREADY_OPEN = 5026,
    KW_FILE_INVALID_VALUE = 5022,
    KW_FILE_MEMORY_ALREADY_REGISTERED = 5023,
    KW_FILE_MEMORY_NOT_REGISTERED = 5024,
    KW_FILE_PERMISSION_DENIED = 5025,
    KW_FILE_HANDLE_NOT_REGISTERED = 5027,
    KW_FILE_NOT_FOUND = 5028,
    KW_FILE_BUSY = 5029,
    KW_FILE_IO_ERROR = 5030
} KWfileOpError;

typedef struct KWfileError {
    int32_t err;    /* KWfileOpError */
    int32_t cu_err; /* always 0: the message is in kwFileLastError() */
} KWfileError_t;

#define KW_FILE_HANDLE_TYPE_S3URL 16

typedef struct KWfileDescr {
    int32_t type; /* KW_FILE_HANDLE_TYPE_S3URL */
    union {
        int32_t fd;
        const void *handle; /* "s3://bucket/key" */
    } handle;
    const void *fs_ops; /* NULL */
} KWfileDescr_t;

typedef struct kwfile_handle *KWfileHandle_t;
typedef struct kwfile_batch *KWfileBatchHandle_t;

typedef enum KWfileOpcode { KWFILE_READ = 0, KWFILE_WRITE = 1 } KWfileOpcode_t;
typedef enum KWfileBatchMode { KWFILE_BATCH = 1 } KWfileBatchMode_t;
typedef enum KWfileStatus {
    KWFILE_WAITING = 0x01,
    KWFILE_PENDING = 0x02,
    KWFILE_INVALID = 0x04,
    KWFILE_CANCELED = 0x08,
    KWFILE_COMPLETE = 0x10,
    KWFILE_TIMEOUT = 0x20,
    KWFILE_FAILED = 0x40
} KWfileStatus_t;

typedef struct KWfileIOParams {
    int32_t mode; /* KWFILE_BATCH */
    union {
        struct {
            void *devPtr_base;
            int64_t file_offset;
            int64_t devPtr_offset;
            size_t size;
        } batch;
    } u;
    KWfileHandle_t fh;
    int32_t opcode; /* KWfileOpcode_t */
    void *cookie;
} KWfileIOParams_t;

typedef struct KWfileIOEvents {
    void *cookie;
    int32_t status; /* KWfileStatus_t */
    size_t ret;     /* bytes; (size_t)-errno where it failed */
} KWfileIOEvents_t;

/* Makes the client, of the environment's endpoint and keys. */
KWfileError_t kwFileDriverOpen(void);
/* The same, of these options. */
KWfileError_t kwFileDriverOpenWith(const keyway_client_options *options);
KWfileError_t kwFileDriverClose(void);

/* An object to be read (it must exist, and stays the version that it is) or written. */
KWfileError_t kwFileHandleRegister(KWfileHandle_t *fh, KWfileDescr_t *descr);
void kwFileHandleDeregister(KWfileHandle_t fh);

KWfileError_t kwFileBufRegister(const void *bufPtr_base, size_t size, int32_t flags);
KWfileError_t kwFileBufDeregister(const void *bufPtr_base);

/* Bytes moved, fewer at the object's end; -1 and errno where it failed. */
ssize_t kwFileRead(KWfileHandle_t fh, void *bufPtr_base, size_t size, int64_t file_offset,
                   int64_t bufPtr_offset);
/* Writes the whole object: file_offset is 0. */
ssize_t kwFileWrite(KWfileHandle_t fh, const void *bufPtr_base, size_t size, int64_t file_offset,
                    int64_t bufPtr_offset);

/* In the stream's order. The values are read when it is called; *bytes is there when the stream
 * has come so far. */
KWfileError_t kwFileReadAsync(KWfileHandle_t fh, void *bufPtr_base, size_t *size_p,
                              int64_t *file_offset_p, int64_t *bufPtr_offset_p,
                              ssize_t *bytes_read_p, void *stream);
KWfileError_t kwFileWriteAsync(KWfileHandle_t fh, void *bufPtr_base, size_t *size_p,
                               int64_t *file_offset_p, int64_t *bufPtr_offset_p,
                               ssize_t *bytes_written_p, void *stream);

KWfileError_t kwFileBatchIOSetUp(KWfileBatchHandle_t *batch, uint32_t nr);
KWfileError_t kwFileBatchIOSubmit(KWfileBatchHandle_t batch, uint32_t nr,
                                  KWfileIOParams_t *requests, uint32_t flags);
KWfileError_t kwFileBatchIOGetStatus(KWfileBatchHandle_t batch, uint32_t min_nr, uint32_t *nr,
                                     KWfileIOEvents_t *events, const struct timespec *timeout);
void kwFileBatchIODestroy(KWfileBatchHandle_t batch);

/* Of this thread's last failure, in words. */
const char *kwFileLastError(void);

#ifdef __cplusplus
}
#endif
#endif
