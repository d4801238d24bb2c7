/* Goal: a program written for cuFile works on objects when it is renamed. Method: the calls of
 * such a program, on host memory; bytes and errors are asserted.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keyway_cufile.h"

#define SIZE ((size_t)1 << 20)
#define BATCH 32

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,            \
                    kwFileLastError());                                                   \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static KWfileHandle_t registered(const char *url)
{
    KWfileHandle_t handle;
    KWfileDescr_t descr;
    memset(&descr, 0, sizeof descr);
    descr.type = KW_FILE_HANDLE_TYPE_S3URL;
    descr.handle.handle = url;
    CHECK(kwFileHandleRegister(&handle, &descr).err == KW_FILE_SUCCESS);
    return handle;
}

int main(void)
{
    unsigned char *data = malloc(SIZE), *back = malloc(SIZE);
    for (size_t i = 0; i < SIZE; i++)
        data[i] = (unsigned char)(i * 7 + (i >> 8));

    KWfileHandle_t handle;
    KWfileDescr_t descr = {.type = KW_FILE_HANDLE_TYPE_S3URL, .handle.handle = "s3://cufile/k"};
    CHECK(kwFileHandleRegister(&handle, &descr).err == KW_FILE_DRIVER_NOT_INITIALIZED);
    CHECK(kwFileDriverOpen().err == KW_FILE_SUCCESS);
    CHECK(kwFileDriverOpen().err == KW_FILE_DRIVER_ALREADY_OPEN);

    handle = registered("s3://cufile/k");
    CHECK(kwFileRead(handle, back, SIZE, 0, 0) == -1 && errno == ENOENT);
    CHECK(kwFileBufRegister(data, SIZE, 0).err == KW_FILE_SUCCESS);
    CHECK(kwFileBufRegister(back, SIZE, 0).err == KW_FILE_SUCCESS);
    CHECK(kwFileBufRegister(back, SIZE, 0).err == KW_FILE_MEMORY_ALREADY_REGISTERED);
    CHECK(kwFileWrite(handle, data, SIZE, 4096, 0) == -1 && errno == ESPIPE);
    CHECK(kwFileWrite(handle, data, SIZE, 0, 0) == (ssize_t)SIZE);
    CHECK(kwFileRead(handle, back, SIZE, 0, 0) == (ssize_t)SIZE);
    CHECK(memcmp(data, back, SIZE) == 0);
    puts("ok: write and read");

    memset(back, 0, SIZE);
    CHECK(kwFileRead(handle, back, 4096, 12345, 100) == 4096);
    CHECK(memcmp(back + 100, data + 12345, 4096) == 0 && back[99] == 0 && back[4196] == 0);
    CHECK(kwFileRead(handle, back, SIZE, (int64_t)SIZE - 10, 0) == 10);
    CHECK(kwFileRead(handle, back, SIZE, (int64_t)SIZE + 10, 0) == 0);
    CHECK(kwFileRead(handle, back, 1, -1, 0) == -1 && errno == EINVAL);
    puts("ok: offsets and the end");

    KWfileBatchHandle_t batch;
    KWfileIOParams_t requests[BATCH];
    KWfileIOEvents_t events[BATCH];
    uint32_t count = BATCH, done = 0;
    CHECK(kwFileBatchIOSetUp(&batch, BATCH).err == KW_FILE_SUCCESS);
    memset(back, 0, SIZE);
    for (int i = 0; i < BATCH; i++) {
        memset(&requests[i], 0, sizeof requests[i]);
        requests[i].mode = KWFILE_BATCH;
        requests[i].fh = handle;
        requests[i].opcode = KWFILE_READ;
        requests[i].cookie = &requests[i];
        requests[i].u.batch.devPtr_base = back;
        requests[i].u.batch.devPtr_offset = i * 4096;
        requests[i].u.batch.file_offset = (BATCH - 1 - i) * 4096;
        requests[i].u.batch.size = 4096;
    }
    CHECK(kwFileBatchIOSubmit(batch, BATCH, requests, 0).err == KW_FILE_SUCCESS);
    CHECK(kwFileBatchIOSubmit(batch, 1, requests, 0).err == KW_FILE_BUSY);
    while (done < BATCH) {
        struct timespec patience = {30, 0};
        count = BATCH;
        CHECK(kwFileBatchIOGetStatus(batch, 1, &count, events, &patience).err == 0);
        CHECK(count > 0);
        for (uint32_t i = 0; i < count; i++)
            CHECK(events[i].status == KWFILE_COMPLETE && events[i].ret == 4096);
        done += count;
    }
    for (int i = 0; i < BATCH; i++)
        CHECK(memcmp(back + i * 4096, data + (BATCH - 1 - i) * 4096, 4096) == 0);
    kwFileBatchIODestroy(batch);
    puts("ok: a batch");

    CHECK(kwFileBufDeregister(back).err == KW_FILE_SUCCESS);
    CHECK(kwFileBufDeregister(back).err == KW_FILE_MEMORY_NOT_REGISTERED);
    CHECK(kwFileBufDeregister(data).err == KW_FILE_SUCCESS);
    kwFileHandleDeregister(handle);
    CHECK(kwFileDriverClose().err == KW_FILE_SUCCESS);
    CHECK(kwFileDriverClose().err == KW_FILE_DRIVER_NOT_INITIALIZED);
    puts("ok: done");
    free(data);
    free(back);
    return 0;
}
