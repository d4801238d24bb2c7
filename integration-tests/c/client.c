/* Goal: keyway.h does what it says, from C, against a real server: every call, what it answers,
 * and what it refuses. Method: ENDPOINT and keys come from the environment; every step is
 * asserted, and named on standard output.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "keyway.h"

#define MIB ((size_t)1 << 20)
#define REQUESTS 64

static keyway_error error;

#define CHECK(condition)                                                                  \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition,            \
                    error.message);                                                       \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static void step(const char *name)
{
    printf("ok: %s\n", name);
    fflush(stdout);
    memset(&error, 0, sizeof error);
    error.size = sizeof error;
}

static unsigned char *noise(size_t bytes)
{
    unsigned char *memory = malloc(bytes + 1);
    unsigned x = 12345;
    CHECK(memory);
    for (size_t i = 0; i < bytes; i++) {
        x = x * 1103515245u + 12345u;
        memory[i] = (unsigned char)(x >> 16);
    }
    return memory;
}

static void around(const keyway_client *client)
{
    size_t sizes[] = {0, 1, 4096, 20 * MIB + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t bytes = sizes[i];
        unsigned char *data = noise(bytes), *back = calloc(1, bytes + 8);
        keyway_result put = KEYWAY_INIT(keyway_result), got = KEYWAY_INIT(keyway_result);
        CHECK(keyway_put(client, "s3://client/k", data, bytes, NULL, &put, &error) == (int64_t)bytes);
        CHECK(put.bytes == bytes && put.verified == 1 && put.retries == 0);
        CHECK(strcmp(put.path, "http") == 0 && strcmp(put.strength, "http") == 0);
        CHECK(strncmp(put.checksum, "CRC64NVME:", 10) == 0);
        CHECK(keyway_get(client, "s3://client/k", back, bytes + 8, NULL, &got, &error) ==
              (int64_t)bytes);
        CHECK(memcmp(data, back, bytes) == 0 && got.verified == 1);
        CHECK(strcmp(got.etag, put.etag) == 0 && strcmp(got.checksum, put.checksum) == 0);
        free(data);
        free(back);
    }
    step("objects go around");
}

static void ranges(const keyway_client *client)
{
    unsigned char *data = noise(MIB), back[300];
    CHECK(keyway_put(client, "s3://client/ranges", data, MIB, NULL, NULL, &error) == (int64_t)MIB);
    keyway_get_options options = KEYWAY_INIT(keyway_get_options);
    options.offset = 1000;
    CHECK(keyway_get(client, "s3://client/ranges", back, 100, &options, NULL, &error) == 100);
    CHECK(memcmp(back, data + 1000, 100) == 0);
    keyway_range wanted[3] = {{5, back, 100}, {500000, back + 100, 100}, {0, back + 200, 100}};
    keyway_result result = KEYWAY_INIT(keyway_result);
    CHECK(keyway_get_ranges(client, "s3://client/ranges", wanted, 3, NULL, &result, &error) == 300);
    CHECK(memcmp(back, data + 5, 100) == 0 && memcmp(back + 100, data + 500000, 100) == 0);
    CHECK(memcmp(back + 200, data, 100) == 0 && result.bytes == 300 && result.verified == 0);
    free(data);
    step("ranges");
}

static void objects(const keyway_client *client)
{
    keyway_put_options put = KEYWAY_INIT(keyway_put_options);
    put.content_type = "text/plain";
    put.flags = KEYWAY_IF_ABSENT;
    CHECK(keyway_put(client, "s3://client/list/a/1", "one", 3, &put, NULL, &error) == 3);
    CHECK(keyway_put(client, "s3://client/list/a/1", "one", 3, &put, NULL, &error) == -ESTALE);
    CHECK(error.code == ESTALE && strcmp(error.s3_code, "PreconditionFailed") == 0);
    CHECK(keyway_put(client, "s3://client/list/b", "two", 3, NULL, NULL, &error) == 3);
    keyway_object object = KEYWAY_INIT(keyway_object);
    CHECK(keyway_head(client, "s3://client/list/a/1", &object, &error) == 0);
    CHECK(object.bytes == 3 && strcmp(object.content_type, "text/plain") == 0);
    CHECK(object.modified_ms > 0 && object.etag[0] == '"' && strlen(object.crc64nvme) == 12);

    keyway_listing *listing;
    keyway_entry entry = KEYWAY_INIT(keyway_entry);
    CHECK(keyway_list_open(client, "s3://client/list/", "/", &listing, &error) == 0);
    CHECK(keyway_list_next(listing, &entry, &error) == 1 && !entry.is_prefix);
    CHECK(strcmp(entry.key, "list/b") == 0 && entry.bytes == 3);
    CHECK(keyway_list_next(listing, &entry, &error) == 1 && entry.is_prefix);
    CHECK(strcmp(entry.key, "list/a/") == 0);
    CHECK(keyway_list_next(listing, &entry, &error) == 0);
    keyway_list_close(listing);
    CHECK(keyway_delete(client, "s3://client/list/b", &error) == 0);
    CHECK(keyway_head(client, "s3://client/list/b", &object, &error) == -ENOENT);
    step("objects and listings");
}

static void memory_first(const keyway_client *client)
{
    uint64_t lost = 7;
    unsigned char *data = noise(MIB), *back = calloc(1, MIB);
    keyway_put_options put = KEYWAY_INIT(keyway_put_options);
    keyway_result result = KEYWAY_INIT(keyway_result);
    put.flags = KEYWAY_MEMORY_FIRST;
    CHECK(keyway_put(client, "s3://client/first", data, MIB, &put, &result, &error) ==
          (int64_t)MIB);
    CHECK(result.durability == 1);
    CHECK(keyway_get(client, "s3://client/first", back, MIB, NULL, NULL, &error) == (int64_t)MIB);
    CHECK(memcmp(back, data, MIB) == 0);
    /* The service may have been done with it before it was asked. */
    int64_t durable = keyway_flush(client, "s3://client/first", 30000, &lost, &error);
    CHECK((durable == 0 || durable == 1) && lost == 0);
    CHECK(keyway_flush(client, "s3://client", 30000, NULL, &error) == 0);
    CHECK(keyway_flush(client, NULL, 0, NULL, &error) == -EINVAL);
    put.flags = KEYWAY_MEMORY_FIRST | KEYWAY_IF_ABSENT;
    CHECK(keyway_put(client, "s3://client/first", "more", 4, &put, NULL, &error) == -ESTALE);
    put.flags = 4;
    CHECK(keyway_put(client, "s3://client/first", "more", 4, &put, NULL, &error) == -EINVAL);
    /* Small objects are on the device at once. */
    put.flags = KEYWAY_MEMORY_FIRST;
    CHECK(keyway_put(client, "s3://client/small", "four", 4, &put, &result, &error) == 4);
    CHECK(result.durability == 0);
    free(data);
    free(back);
    step("memory first");
}

static void refusals(const keyway_client *client, const char *endpoint)
{
    char small[4];
    CHECK(keyway_put(client, "s3://client/r", "12345", 5, NULL, NULL, &error) == 5);
    CHECK(keyway_get(client, "s3://client/r", small, 4, NULL, NULL, &error) == -ENOSPC);
    CHECK(strstr(error.message, "5 bytes"));
    CHECK(keyway_get(client, "s3://client/none", small, 4, NULL, NULL, &error) == -ENOENT);
    CHECK(error.http_status == 404 && strcmp(error.s3_code, "NoSuchKey") == 0);
    CHECK(error.request_id[0]);
    CHECK(keyway_get(client, "s3://client/none", small, 4, NULL, NULL, NULL) == -ENOENT);
    CHECK(keyway_get(client, "file:///etc", small, 4, NULL, NULL, &error) == -EINVAL);
    CHECK(keyway_get(client, NULL, small, 4, NULL, NULL, &error) == -EINVAL);
    CHECK(keyway_get(client, "s3://client/r", NULL, 4, NULL, NULL, &error) == -EINVAL);
    CHECK(keyway_get(NULL, "s3://client/r", small, 4, NULL, NULL, &error) == -EINVAL);
    keyway_get_options unset = {0};
    CHECK(keyway_get(client, "s3://client/r", small, 4, &unset, NULL, &error) == -EINVAL);

    keyway_client *other;
    keyway_client_options options = KEYWAY_INIT(keyway_client_options);
    options.endpoint = endpoint;
    options.access_key = "nobody";
    options.secret_key = "nothing";
    CHECK(keyway_client_open(&options, &other, &error) == 0);
    CHECK(keyway_get(other, "s3://client/r", small, 4, NULL, NULL, &error) == -EACCES);
    keyway_client_close(other);
    options.path = "pigeon";
    CHECK(keyway_client_open(&options, &other, &error) == -EINVAL);
    CHECK(strstr(error.message, "verbs-host"));
    keyway_client_close(NULL);
    step("refusals");
}

static void queue(const keyway_client *client)
{
    keyway_queue *queue;
    keyway_request requests[REQUESTS];
    keyway_completion done[16];
    static unsigned char memory[REQUESTS][4096];
    CHECK(keyway_queue_open(&queue, &error) == 0);
    CHECK(keyway_memory_register(memory, sizeof memory, &error) == 0);
    CHECK(keyway_memory_register(memory[1], 4096, &error) == -EEXIST);
    for (int operation = KEYWAY_PUT;; operation = KEYWAY_GET) {
        char url[REQUESTS][32];
        for (unsigned i = 0; i < REQUESTS; i++) {
            snprintf(url[i], sizeof url[i], "s3://client/queue/%u", i);
            requests[i] = KEYWAY_INIT(keyway_request);
            requests[i].tag = 1000 + i;
            requests[i].url = url[i];
            requests[i].memory = memory[i];
            requests[i].bytes = sizeof memory[i];
            requests[i].operation = (uint32_t)operation;
            memset(memory[i], operation == KEYWAY_PUT ? (int)i : 0xff, sizeof memory[i]);
        }
        CHECK(keyway_submit(client, queue, requests, REQUESTS, &error) == 0);
        int seen[REQUESTS] = {0};
        for (int count = 0; count < REQUESTS;) {
            struct pollfd wait = {.fd = keyway_queue_fd(queue), .events = POLLIN};
            CHECK(poll(&wait, 1, 30000) == 1);
            int found = keyway_queue_wait(queue, done, 16, 0, &error);
            CHECK(found > 0);
            for (int i = 0; i < found; i++) {
                CHECK(done[i].status == 4096 && done[i].result.verified);
                CHECK(!seen[done[i].tag - 1000]++);
            }
            count += found;
        }
        CHECK(keyway_queue_wait(queue, done, 16, 10, &error) == 0);
        if (operation == KEYWAY_GET)
            break;
    }
    for (int i = 0; i < REQUESTS; i++)
        CHECK(memory[i][0] == i && memory[i][4095] == i);
    CHECK(keyway_memory_deregister(memory, &error) == 0);
    CHECK(keyway_memory_deregister(memory, &error) == -EINVAL);

    requests[0].url = "s3://client/none";
    requests[1].url = "s3://";
    CHECK(keyway_submit(client, queue, requests, 2, &error) == -EINVAL);
    CHECK(keyway_submit(client, queue, requests, 1, &error) == 0);
    CHECK(keyway_queue_wait(queue, done, 16, 30000, &error) == 1);
    CHECK(done[0].status == -ENOENT && strcmp(done[0].error.s3_code, "NoSuchKey") == 0);
    requests[0].url = "s3://client/queue/0";
    CHECK(keyway_submit(client, queue, requests, 1, &error) == 0);
    keyway_queue_close(queue);
    step("a queue of completions");
}

static void child(const keyway_client *client)
{
    char five[5];
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        _exit(keyway_get(client, "s3://client/r", five, 5, NULL, NULL, NULL) == 5 ? 0 : 1);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(keyway_get(client, "s3://client/r", five, 5, NULL, NULL, &error) == 5);
    step("a forked child");
}

int main(void)
{
    const char *endpoint = getenv("ENDPOINT");
    keyway_client_options options = KEYWAY_INIT(keyway_client_options);
    keyway_client *client;
    error.size = sizeof error;
    options.endpoint = endpoint;
    CHECK(keyway_abi_version() == KEYWAY_ABI_VERSION);
    CHECK(keyway_client_open(&options, &client, &error) == 0);
    CHECK(keyway_create_bucket(client, "client", &error) == 0);
    around(client);
    ranges(client);
    objects(client);
    memory_first(client);
    refusals(client, endpoint);
    queue(client);
    child(client);
    keyway_client_close(client);
    return 0;
}
