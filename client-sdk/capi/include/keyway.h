/* The Keyway client for C: objects of an S3 store into and out of memory that you own, host or
 * GPU.
 *
 * Conventions
 *  - Structures that are options or answers begin with `size`: set it to sizeof. A library of
 *    another version then knows which fields you have. KEYWAY_INIT(type) gives all zeros but it.
 *  - Functions return 0 or a count, or a negative errno; `error`, where not NULL, tells the rest.
 *  - Addresses of objects are "s3://bucket/key".
 *  - While a call, or a request until its completion, runs, nobody else may write to its memory,
 *    nor read what is being filled.
 *  - Handles may be used by several threads. A client may be used after fork(); a queue may not.
 */
#ifndef KEYWAY_H
#define KEYWAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KEYWAY_ABI_VERSION 1
#define KEYWAY_INIT(type) ((type){.size = sizeof(type)})

typedef struct keyway_client keyway_client;
typedef struct keyway_queue keyway_queue;
typedef struct keyway_listing keyway_listing;

/* What failed. */
typedef struct keyway_error {
    size_t size;
    int32_t code;           /* the errno, positive; 0 for none */
    int32_t http_status;    /* where the service refused, else 0 */
    char s3_code[64];       /* such as "NoSuchKey" */
    char request_id[64];    /* the service's name for the request */
    char message[512];
} keyway_error;

/* flags of keyway_client_options */
#define KEYWAY_ANONYMOUS 1u    /* sign nothing, whatever the environment says */
#define KEYWAY_VIRTUAL_HOST 2u /* https://bucket.endpoint/key */

/* NULL and 0 mean "as usual". Without an endpoint: KEYWAY_ENDPOINT or AWS_ENDPOINT_URL; without
 * keys: KEYWAY_ACCESS_KEY and KEYWAY_SECRET_KEY, or AWS's. */
typedef struct keyway_client_options {
    size_t size;
    const char *endpoint;
    const char *region;
    const char *access_key;
    const char *secret_key;
    const char *session_token;
    const char *ca_file;          /* PEM, instead of the machine's authorities */
    const char *path;             /* "auto", or the one path that may be taken */
    const char *require_strength; /* weaker keys to memory are not used */
    uint64_t get_part_bytes;
    uint64_t put_part_bytes;
    uint32_t concurrency;         /* parts of one transfer in flight */
    uint32_t connections_max;
    uint32_t attempts_max;
    uint32_t connect_timeout_ms;
    uint32_t stall_timeout_ms;
    uint32_t flags;
} keyway_client_options;

/* How a transfer went. */
typedef struct keyway_result {
    size_t size;
    uint64_t bytes;        /* moved */
    uint64_t object_bytes; /* of the object, whatever range was moved */
    uint32_t verified;     /* 1: checked against a checksum of the whole */
    uint32_t retries;
    uint32_t fallbacks;    /* requests that took a slower path than allowed */
    uint32_t durability;   /* of what was written: 0 on the device, 1 in the service's memory */
    char path[16];         /* "http", "ipc-gpu", "verbs-host", ... */
    char strength[16];     /* what protected the memory */
    char checksum[96];     /* "KIND:base64", where verified */
    char etag[128];
    char fallback[128];    /* why, in words */
} keyway_result;

typedef struct keyway_get_options {
    size_t size;
    uint64_t offset;      /* first byte of the range */
    uint64_t length;      /* 0: all of the object; with an offset, as many as memory has */
    const char *version;
    const char *if_match; /* only while the object has this ETag */
    uint64_t part_bytes;
    uint32_t concurrency;
    uint32_t timeout_ms;  /* 0: none */
    void *stream;         /* CUstream of GPU memory; see docs/c.md */
} keyway_get_options;

#define KEYWAY_IF_ABSENT 1u
#define KEYWAY_MEMORY_FIRST 2u /* done when a Keyway service has the bytes in its memory */

typedef struct keyway_put_options {
    size_t size;
    const char *content_type;
    const char *if_match;
    uint64_t part_bytes;
    uint32_t concurrency;
    uint32_t timeout_ms;
    void *stream;
    uint32_t flags; /* KEYWAY_IF_ABSENT, KEYWAY_MEMORY_FIRST */
    uint32_t reserved;
} keyway_put_options;

/* `bytes` bytes of the object from `offset` on, into `memory`. */
typedef struct keyway_range {
    uint64_t offset;
    void *memory;
    size_t bytes;
} keyway_range;

typedef struct keyway_object {
    size_t size;
    uint64_t bytes;
    int64_t modified_ms; /* since 1970; 0 where unknown */
    char etag[128];
    char version[128];
    char content_type[128];
    char crc64nvme[16];  /* base64, where the service keeps it */
} keyway_object;

/* `key` lives until the listing is asked again or closed. */
typedef struct keyway_entry {
    size_t size;
    const char *key;
    uint64_t bytes;
    int64_t modified_ms;
    uint32_t is_prefix; /* no object, but what the delimiter rolled up */
    uint32_t reserved;
    char etag[128];
} keyway_entry;

uint32_t keyway_abi_version(void);

/* A client. Nothing is connected before the first request. Close it when no call uses it. */
int32_t keyway_client_open(const keyway_client_options *options, keyway_client **client,
                           keyway_error *error);
void keyway_client_close(keyway_client *client);

/* Calls that wait. They return the bytes moved. */
int64_t keyway_get(const keyway_client *client, const char *url, void *memory, size_t bytes,
                   const keyway_get_options *options, keyway_result *result, keyway_error *error);
int64_t keyway_get_ranges(const keyway_client *client, const char *url,
                          const keyway_range *ranges, size_t count,
                          const keyway_get_options *options, keyway_result *result,
                          keyway_error *error);
int64_t keyway_put(const keyway_client *client, const char *url, const void *memory, size_t bytes,
                   const keyway_put_options *options, keyway_result *result, keyway_error *error);

/* Waits until what was written to the service's memory is on its device: one object's bytes, or
 * all of s3://bucket. Returns how many objects became durable with the call; `lost`, which may be
 * NULL, is how many were lost before they could, and are what they were before. timeout_ms 0:
 * none. */
int64_t keyway_flush(const keyway_client *client, const char *url, uint32_t timeout_ms,
                     uint64_t *lost, keyway_error *error);

int32_t keyway_head(const keyway_client *client, const char *url, keyway_object *object,
                    keyway_error *error);
int32_t keyway_delete(const keyway_client *client, const char *url, keyway_error *error);
int32_t keyway_create_bucket(const keyway_client *client, const char *bucket, keyway_error *error);

/* Objects whose addresses begin with `url`, in order. keyway_list_next gives 1, or 0 at the end. */
int32_t keyway_list_open(const keyway_client *client, const char *url, const char *delimiter,
                         keyway_listing **listing, keyway_error *error);
int32_t keyway_list_next(keyway_listing *listing, keyway_entry *entry, keyway_error *error);
void keyway_list_close(keyway_listing *listing);

/* Memory that is used again and again: registrations with adapters and other processes are then
 * made once. It must stay allocated until it is deregistered; -EBUSY while a transfer uses it. */
int32_t keyway_memory_register(void *memory, size_t bytes, keyway_error *error);
int32_t keyway_memory_deregister(void *memory, keyway_error *error);

/* Requests that do not wait. Completions arrive at a queue, whose descriptor becomes readable
 * (poll, epoll, io_uring). */
#define KEYWAY_GET 0u
#define KEYWAY_PUT 1u

typedef struct keyway_request {
    size_t size;
    uint64_t tag;       /* yours, comes back */
    const char *url;
    void *memory;
    size_t bytes;
    uint64_t offset;    /* of a GET, with length, as in keyway_get_options */
    uint64_t length;
    void *stream;
    uint32_t operation; /* KEYWAY_GET, KEYWAY_PUT */
    uint32_t timeout_ms;
    uint32_t flags;     /* of a PUT, as in keyway_put_options */
    uint32_t reserved;
} keyway_request;

typedef struct keyway_completion {
    uint64_t tag;
    int64_t status; /* bytes moved, or a negative errno */
    keyway_result result;
    keyway_error error;
} keyway_completion;

int32_t keyway_queue_open(keyway_queue **queue, keyway_error *error);
int32_t keyway_queue_fd(const keyway_queue *queue);
/* Submits all requests or, on an error, none. */
int32_t keyway_submit(const keyway_client *client, const keyway_queue *queue,
                      const keyway_request *requests, size_t count, keyway_error *error);
/* Takes up to `max` completions; waits for the first: timeout_ms < 0 for ever, 0 not at all. */
int32_t keyway_queue_wait(const keyway_queue *queue, keyway_completion *completions, size_t max,
                          int32_t timeout_ms, keyway_error *error);
/* Waits until nothing is under way. */
void keyway_queue_close(keyway_queue *queue);

#ifdef __cplusplus
}
#endif
#endif
