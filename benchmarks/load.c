/* load: a Kafka client that costs almost nothing, so that a measurement shows the broker and not the client.
 *
 *   load produce  sends one prepared record batch again and again (Produce v9), N connections x D in flight
 *   load consume  walks a log forward with large fetches (Fetch v11) and starts over at its end, never waiting
 *   load idempotent    the same with producer ids and sequences; every connection writes to all partitions in turn
 *   load transactions  the same in transactions; latencies are those of EndTxn alone
 *   load e2e      sends records at a fixed rate and reads them back; latency runs from the moment a record was due
 *
 * One thread, one epoll, no allocation while measuring. The result is one JSON object on stdout.
 * A broker's error code ends the run: a figure that contains refused requests would mean nothing.
 *
 * Build: cc -O2 -o load load.c
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { HEAD_MAX = 512, IOV_MAX_USED = 64, EVENTS_MAX = 256, CLIENT_ID_LENGTH = 4, BATCH_HEADER = 61 };
enum { BROKERS_MAX = 8, PARTITIONS_MAX = 64, ATTRIBUTE_TRANSACTIONAL = 0x10, ATTRIBUTE_CONTROL = 0x20 };
enum { COORDINATOR_LOADING = 14, COORDINATOR_NOT_AVAILABLE = 15, NOT_COORDINATOR = 16, CONCURRENT_TRANSACTIONS = 51 };
enum { E2E_RECORDS_MAX = 1000, E2E_FETCH_WAIT_MS = 500 };

static const uint64_t SECOND = 1000000000ull;
static const uint64_t AGAIN_NS = 1000000;
static const double DRAIN_SECONDS = 30.0;

/* ---- Settings, from the command line ---- */

static struct {
    const char *mode, *host, *topic, *batch_path;
    int ports[BROKERS_MAX], port_count, partitions, connections, depth, acks, records_per_batch, record_bytes;
    int transaction_version, batches_per_transaction, abort_every, isolation;
    int64_t fetch_bytes, bytes_max;
    double seconds, warmup, rate;
} opt = { .host = "127.0.0.1", .topic = "load", .partitions = 1, .connections = 1, .depth = 1, .acks = 1,
          .records_per_batch = 1, .record_bytes = 100, .fetch_bytes = 1 << 20, .bytes_max = INT64_MAX,
          .transaction_version = 2, .batches_per_transaction = 1, .seconds = 1.0, .warmup = 0.0, .rate = 10000.0 };

/* ---- State ---- */

struct slot {                 /* one request in flight */
    uint8_t *head;            /* everything before the shared body */
    size_t head_length, body_length;
    uint64_t queued_at;
};

struct conn {
    int fd, partition, wants_write;
    int64_t offset;           /* consume: next offset to ask for */
    int in_transaction;
    uint64_t queued, sent, answered;
    size_t sent_bytes;        /* of the request that is being written */
    struct slot *slots;       /* ring of opt.depth; request n lives in slot n % depth */
    uint8_t *in;
    size_t in_length, in_capacity;
};

static struct conn *conns;
static int epoll_fd;
static uint8_t *body;         /* the batch and the three empty tag sections after it, shared by all requests */
static size_t body_length;
static uint8_t batch_header[BATCH_HEADER];

static uint64_t requests, records, bytes, requests_all, records_all, began, stop_at, measure_from;
static uint64_t transactions, markers_all, refused;
static int stopping, is_transactional;
static uint32_t *latencies;   /* in units of 100 ns */
static size_t latency_count, latency_capacity;

static void fail(const char *what) { fprintf(stderr, "load: %s\n", what); exit(2); }
static void fail_errno(const char *what) { fprintf(stderr, "load: %s: %s\n", what, strerror(errno)); exit(2); }
static void fail_code(const char *what, int code) {
    fprintf(stderr, "load: the broker answered %s with error code %d\n", what, code);
    exit(3);
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static void note_latency(uint64_t ns) {
    if (latency_count == latency_capacity) {
        latency_capacity = latency_capacity ? latency_capacity * 2 : 1 << 20;
        if (!(latencies = realloc(latencies, latency_capacity * sizeof *latencies))) fail("out of memory");
    }
    uint64_t units = ns / 100;
    latencies[latency_count++] = units > UINT32_MAX ? UINT32_MAX : (uint32_t)units;
}

/* ---- Bytes ---- */

static uint8_t *put16(uint8_t *p, int16_t v) { uint16_t b = htobe16((uint16_t)v); memcpy(p, &b, 2); return p + 2; }
static uint8_t *put32(uint8_t *p, int32_t v) { uint32_t b = htobe32((uint32_t)v); memcpy(p, &b, 4); return p + 4; }
static uint8_t *put64(uint8_t *p, int64_t v) { uint64_t b = htobe64((uint64_t)v); memcpy(p, &b, 8); return p + 8; }
static uint8_t *put_bytes(uint8_t *p, const void *from, size_t n) { memcpy(p, from, n); return p + n; }
static int16_t get16(const uint8_t *p) { uint16_t b; memcpy(&b, p, 2); return (int16_t)be16toh(b); }
static int32_t get32(const uint8_t *p) { uint32_t b; memcpy(&b, p, 4); return (int32_t)be32toh(b); }
static int64_t get64(const uint8_t *p) { uint64_t b; memcpy(&b, p, 8); return (int64_t)be64toh(b); }

static uint8_t *put_uvarint(uint8_t *p, uint64_t v) {
    while (v >= 0x80) { *p++ = (uint8_t)(v | 0x80); v >>= 7; }
    *p++ = (uint8_t)v;
    return p;
}
static uint8_t *put_varint(uint8_t *p, int64_t v) { return put_uvarint(p, ((uint64_t)v << 1) ^ (uint64_t)(v >> 63)); }

static const uint8_t *get_varint(const uint8_t *p, int64_t *v) {
    uint64_t raw = 0;
    for (int shift = 0;; shift += 7) {
        raw |= (uint64_t)(*p & 0x7f) << shift;
        if (!(*p++ & 0x80)) break;
    }
    *v = (int64_t)(raw >> 1) ^ -(int64_t)(raw & 1);
    return p;
}

static uint32_t crc_table[256];
static void crc32c_prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82f63b78u : c >> 1;
        crc_table[i] = c;
    }
}
static uint32_t crc_continue(uint32_t c, const uint8_t *p, size_t n) {
    while (n--) c = crc_table[(c ^ *p++) & 0xff] ^ (c >> 8);
    return c;
}
static uint32_t crc32c(const uint8_t *p, size_t n) { return ~crc_continue(~0u, p, n); }

/* ---- Requests ---- */

static uint8_t *put_request_header(uint8_t *p, int16_t key, int16_t version) {
    p = put32(p, 0);          /* size, set when the length is known */
    p = put16(p, key);
    p = put16(p, version);
    p = put32(p, 0);          /* correlation id, set when it is queued */
    p = put16(p, CLIENT_ID_LENGTH);
    return put_bytes(p, "load", CLIENT_ID_LENGTH);
}

static uint8_t *put_compact_string(uint8_t *p, const char *text) {
    if (!text) return put_uvarint(p, 0);
    p = put_uvarint(p, strlen(text) + 1);
    return put_bytes(p, text, strlen(text));
}

static uint8_t *put_string(uint8_t *p, const char *text) {
    p = put16(p, text ? (int16_t)strlen(text) : -1);
    return text ? put_bytes(p, text, strlen(text)) : p;
}

static size_t close_request(uint8_t *head, const uint8_t *end) {
    put32(head, (int32_t)(end - head) - 4);
    return (size_t)(end - head);
}

/* Produce v9 up to its partitions. With v12 a batch adds its partition to the transaction by itself. */
static uint8_t *put_produce_start(uint8_t *head, int16_t version, const char *transactional_id, int partitions) {
    uint8_t *p = put_request_header(head, 0, version);
    *p++ = 0;                 /* header tags */
    p = put_compact_string(p, transactional_id);
    p = put16(p, (int16_t)opt.acks);
    p = put32(p, 30000);
    p = put_uvarint(p, 2);
    p = put_compact_string(p, opt.topic);
    return put_uvarint(p, (uint64_t)partitions + 1);
}

/* All of it up to the records of one partition; `records_length` bytes and three empty tag sections follow. */
static size_t encode_produce_head(
    uint8_t *head, int16_t version, const char *transactional_id, int partition, size_t records_length) {
    uint8_t *p = put_produce_start(head, version, transactional_id, 1);
    p = put32(p, partition);
    p = put_uvarint(p, records_length + 1);
    put32(head, (int32_t)((size_t)(p - head) - 4 + records_length + 3));
    return (size_t)(p - head);
}

/* Fetch v11, one partition, no session. */
static size_t encode_fetch(uint8_t *head, int partition, int64_t offset, int wait_ms) {
    size_t name = strlen(opt.topic);
    uint8_t *p = put_request_header(head, 1, 11);
    p = put32(p, -1);         /* not a replica */
    p = put32(p, wait_ms);
    p = put32(p, 1);          /* min bytes */
    p = put32(p, (int32_t)opt.fetch_bytes);
    *p++ = (uint8_t)opt.isolation;
    p = put32(p, 0);
    p = put32(p, -1);
    p = put32(p, 1);
    p = put16(p, (int16_t)name);
    p = put_bytes(p, opt.topic, name);
    p = put32(p, 1);
    p = put32(p, partition);
    p = put32(p, -1);
    p = put64(p, offset);
    p = put64(p, -1);
    p = put32(p, (int32_t)opt.fetch_bytes);
    p = put32(p, 0);          /* no forgotten topics */
    p = put16(p, 0);          /* no rack */
    put32(head, (int32_t)(p - head) - 4);
    return (size_t)(p - head);
}

/* ---- Responses ---- */

static int produce_code(const uint8_t *reply) {
    return get16(reply + 4 + 1 + 1 + 1 + strlen(opt.topic) + 1 + 4);
}

static void check_produce_reply(const uint8_t *reply) {
    int code = produce_code(reply);
    if (code) fail_code("Produce", code);
}

/* Finds the records of a Fetch v11 reply; both brokers answer exactly one topic and one partition. */
static const uint8_t *fetched_records(const uint8_t *reply, size_t *length, int64_t *high_watermark) {
    int code = get16(reply + 8);
    if (code) fail_code("Fetch", code);
    if (get32(reply + 14) != 1) fail("a Fetch reply without the topic that was asked for");
    const uint8_t *p = reply + 18;
    p += 2 + get16(p) + 4;
    if ((code = get16(p + 4))) fail_code("Fetch", code);
    *high_watermark = get64(p + 6);
    p += 4 + 2 + 8 + 8 + 8;
    int32_t aborted = get32(p);
    p += 4 + (aborted > 0 ? 16 * aborted : 0) + 4;
    int32_t n = get32(p);
    *length = n > 0 ? (size_t)n : 0;
    return p + 4;
}

/* ---- Connections ---- */

static void watch(struct conn *c, uint32_t events, int op) {
    struct epoll_event e = { .events = events, .data.ptr = c };
    if (epoll_ctl(epoll_fd, op, c->fd, &e)) fail_errno("epoll_ctl");
}

static void open_conn(struct conn *c, int partition, size_t head_capacity, size_t in_capacity) {
    int port = opt.ports[partition % opt.port_count];
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    if (inet_pton(AF_INET, opt.host, &to.sin_addr) != 1) fail("--host must be an IPv4 address");
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to)) fail_errno("connect");
    int on = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK)) fail_errno("fcntl");
    c->partition = partition;
    c->slots = calloc((size_t)opt.depth, sizeof *c->slots);
    c->in_capacity = in_capacity;
    c->in = malloc(in_capacity);
    if (!c->slots || !c->in) fail("out of memory");
    for (int i = 0; i < opt.depth; i++)
        if (!(c->slots[i].head = malloc(head_capacity))) fail("out of memory");
    watch(c, EPOLLIN, EPOLL_CTL_ADD);
}

static struct slot *next_slot(struct conn *c) { return &c->slots[c->queued % (uint64_t)opt.depth]; }

static struct slot *queue_request(struct conn *c, uint64_t now) {
    struct slot *s = next_slot(c);
    put32(s->head + 8, (int32_t)(c->queued & 0x7fffffff));
    s->queued_at = now;
    c->queued++;
    return s;
}

static void flush_conn(struct conn *c) {
    while (c->sent < c->queued) {
        struct iovec iov[IOV_MAX_USED];
        int n = 0;
        size_t skip = c->sent_bytes;
        for (uint64_t r = c->sent; r < c->queued && n + 2 <= IOV_MAX_USED; r++) {
            struct slot *s = &c->slots[r % (uint64_t)opt.depth];
            if (skip < s->head_length) {
                iov[n++] = (struct iovec){ s->head + skip, s->head_length - skip };
                skip = 0;
            } else {
                skip -= s->head_length;
            }
            if (s->body_length) iov[n++] = (struct iovec){ body + skip, s->body_length - skip };
            skip = 0;
        }
        ssize_t written = writev(c->fd, iov, n);
        if (written < 0) {
            if (errno != EAGAIN) fail_errno("write");
            if (!c->wants_write) watch(c, EPOLLIN | EPOLLOUT, EPOLL_CTL_MOD);
            c->wants_write = 1;
            return;
        }
        c->sent_bytes += (size_t)written;
        while (c->sent < c->queued) {
            struct slot *s = &c->slots[c->sent % (uint64_t)opt.depth];
            size_t whole = s->head_length + s->body_length;
            if (c->sent_bytes < whole) break;
            c->sent_bytes -= whole;
            c->sent++;
        }
    }
    if (c->wants_write) watch(c, EPOLLIN, EPOLL_CTL_MOD);
    c->wants_write = 0;
}

/* Reads what is there and hands every whole reply (after its size) to `on_reply`. */
static void read_conn(struct conn *c, void (*on_reply)(struct conn *, const uint8_t *, size_t, uint64_t)) {
    ssize_t got = recv(c->fd, c->in + c->in_length, c->in_capacity - c->in_length, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got < 0) fail_errno("read");
    if (got == 0) fail("the broker closed the connection");
    c->in_length += (size_t)got;
    uint64_t now = now_ns();
    size_t at = 0;
    while (c->in_length - at >= 4) {
        size_t size = (size_t)get32(c->in + at);
        if (size + 4 > c->in_capacity) fail("a reply is larger than the buffer");
        if (c->in_length - at - 4 < size) break;
        on_reply(c, c->in + at + 4, size, now);
        at += 4 + size;
    }
    memmove(c->in, c->in + at, c->in_length - at);
    c->in_length -= at;
}

/* Called once all connections stand. A broker with a short listen queue (Kafka's default is 50) drops the SYN of
 * a burst of 100 connections, and the kernel repeats it a second later: that second is no part of a throughput. */
static void start_clock(void) {
    began = now_ns();
    stop_at = began + (uint64_t)(opt.seconds * 1e9);
}

static void expect_correlation(struct conn *c, const uint8_t *reply) {
    if (get32(reply) != (int32_t)(c->answered & 0x7fffffff)) fail("a reply out of order");
    c->answered++;
}

/* ---- produce ---- */

static void produce_next(struct conn *c, uint64_t now) {
    struct slot *s = queue_request(c, now);
    s->body_length = body_length;
}

static void on_produce_reply(struct conn *c, const uint8_t *reply, size_t size, uint64_t now) {
    (void)size;
    struct slot *s = &c->slots[c->answered % (uint64_t)opt.depth];
    uint64_t took = now - s->queued_at;
    expect_correlation(c, reply);
    check_produce_reply(reply);
    requests_all++;
    records_all += (uint64_t)opt.records_per_batch;
    if (stopping) return;
    requests++;
    records += (uint64_t)opt.records_per_batch;
    bytes += body_length - 3;
    note_latency(took);
    if (bytes >= (uint64_t)opt.bytes_max) stop_at = now;
    else produce_next(c, now);
}

/* The batch without the `apart` bytes of its header that differ from request to request. */
static void load_body(size_t apart) {
    FILE *f = fopen(opt.batch_path, "rb");
    if (!f) fail_errno(opt.batch_path);
    fseek(f, 0, SEEK_END);
    size_t n = (size_t)ftell(f) - apart;
    rewind(f);
    body_length = n + 3;
    body = calloc(1, body_length);
    if (!body || fread(batch_header, 1, apart, f) != apart || fread(body, 1, n, f) != n) fail("cannot read the batch");
    fclose(f);
}

static void start_produce(void) {
    load_body(0);
    for (int i = 0; i < opt.connections; i++) {
        struct conn *c = &conns[i];
        open_conn(c, i % opt.partitions, HEAD_MAX, 1 << 16);
        for (int d = 0; d < opt.depth; d++)
            c->slots[d].head_length = encode_produce_head(c->slots[d].head, 9, NULL, c->partition, body_length - 3);
    }
    start_clock();
    for (int i = 0; i < opt.connections; i++) {
        for (int d = 0; d < opt.depth; d++) produce_next(&conns[i], began);
        flush_conn(&conns[i]);
    }
}

#include "load_producers.h"

/* ---- consume ---- */

static void consume_next(struct conn *c, uint64_t now) {
    struct slot *s = &c->slots[c->queued % (uint64_t)opt.depth];
    s->head_length = encode_fetch(s->head, c->partition, c->offset, 0);
    queue_request(c, now);
}

static void on_fetch_reply(struct conn *c, const uint8_t *reply, size_t size, uint64_t now) {
    uint64_t took = now - c->slots[c->answered % (uint64_t)opt.depth].queued_at;
    size_t length, at = 0;
    (void)size;
    expect_correlation(c, reply);
    int64_t end;
    const uint8_t *p = fetched_records(reply, &length, &end);
    uint64_t seen = 0;
    while (length - at >= BATCH_HEADER) {
        size_t whole = 12 + (size_t)get32(p + at + 8);
        if (whole > length - at) break;
        c->offset = get64(p + at) + get32(p + at + 23) + 1;
        if (!(get16(p + at + 21) & ATTRIBUTE_CONTROL)) seen += (uint64_t)get32(p + at + 57);
        at += whole;
    }
    if (!at) {
        if (c->offset != end) fail("an empty Fetch reply before the end of the log");
        c->offset = 0;        /* waiting at the end would measure the wait */
    } else {
        requests_all++;
        records_all += seen;
    }
    if (stopping) return;
    if (at) {
        requests++;
        records += seen;
        bytes += at;
        note_latency(took);
    }
    consume_next(c, now);
}

static void start_consume(void) {
    opt.depth = 1;            /* the next offset is known only from the reply */
    for (int i = 0; i < opt.connections; i++)
        open_conn(&conns[i], i % opt.partitions, HEAD_MAX, (size_t)opt.fetch_bytes * 2 + (1 << 16));
    start_clock();
    for (int i = 0; i < opt.connections; i++) {
        consume_next(&conns[i], began);
        flush_conn(&conns[i]);
    }
}

/* ---- e2e: conns[0] produces, conns[1] consumes ---- */

static uint64_t e2e_began, e2e_produced, e2e_received, e2e_due_total;
static int e2e_timer;

/* A batch of `count` records; each value starts with the moment its record was due. */
static size_t encode_e2e_batch(uint8_t *batch, int count) {
    uint8_t *p = batch + BATCH_HEADER, *fields = batch + 21;
    for (int i = 0; i < count; i++) {
        uint64_t due = e2e_began + (uint64_t)((double)(e2e_produced + (uint64_t)i) * (1e9 / opt.rate));
        uint8_t record[64], *r = record;
        *r++ = 0;
        r = put_varint(r, 0);
        r = put_varint(r, i);
        r = put_varint(r, -1);
        r = put_varint(r, opt.record_bytes);
        p = put_varint(p, (r - record) + opt.record_bytes + 1);
        p = put_bytes(p, record, (size_t)(r - record));
        memset(p, 'x', (size_t)opt.record_bytes);
        memcpy(p, &due, sizeof due);
        p += opt.record_bytes;
        *p++ = 0;
    }
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    int64_t timestamp = (int64_t)wall.tv_sec * 1000 + wall.tv_nsec / 1000000;
    put64(batch, 0);
    put32(batch + 8, (int32_t)(p - batch) - 12);
    put32(batch + 12, -1);
    batch[16] = 2;
    fields = put16(fields, 0);
    fields = put32(fields, count - 1);
    fields = put64(fields, timestamp);
    fields = put64(fields, timestamp);
    fields = put64(fields, -1);
    fields = put16(fields, -1);
    fields = put32(fields, -1);
    put32(fields, count);
    put32(batch + 17, (int32_t)crc32c(batch + 21, (size_t)(p - batch) - 21));
    return (size_t)(p - batch);
}

/* Sends what is due, one request per call, at most `depth` unanswered: a producer with linger 0. */
static void e2e_produce(void) {
    static uint8_t batch[E2E_RECORDS_MAX * 1200 + BATCH_HEADER];
    struct conn *c = &conns[0];
    uint64_t now = now_ns();
    if (c->queued - c->answered >= (uint64_t)opt.depth) return;
    uint64_t due = (uint64_t)((double)(now - e2e_began) * opt.rate / 1e9) + 1;
    if (due > e2e_due_total) due = e2e_due_total;
    if (due <= e2e_produced) return;
    int count = due - e2e_produced > E2E_RECORDS_MAX ? E2E_RECORDS_MAX : (int)(due - e2e_produced);
    size_t length = encode_e2e_batch(batch, count);
    struct slot *s = &c->slots[c->queued % (uint64_t)opt.depth];
    size_t head = encode_produce_head(s->head, 9, NULL, c->partition, length);
    memcpy(s->head + head, batch, length);
    memset(s->head + head + length, 0, 3);
    s->head_length = head + length + 3;
    queue_request(c, now);
    e2e_produced += (uint64_t)count;
    flush_conn(c);
}

static void e2e_fetch(void) {
    struct conn *c = &conns[1];
    struct slot *s = &c->slots[c->queued % (uint64_t)opt.depth];
    s->head_length = encode_fetch(s->head, c->partition, c->offset, E2E_FETCH_WAIT_MS);
    queue_request(c, now_ns());
    flush_conn(c);
}

static void on_e2e_produced(struct conn *c, const uint8_t *reply, size_t size, uint64_t now) {
    (void)size, (void)now;
    expect_correlation(c, reply);
    check_produce_reply(reply);
    requests++;
    e2e_produce();
}

static void on_e2e_fetched(struct conn *c, const uint8_t *reply, size_t size, uint64_t now) {
    size_t length, at = 0;
    (void)size;
    expect_correlation(c, reply);
    int64_t end;
    const uint8_t *p = fetched_records(reply, &length, &end);
    while (length - at >= BATCH_HEADER) {
        size_t whole = 12 + (size_t)get32(p + at + 8);
        if (whole > length - at) break;
        const uint8_t *r = p + at + BATCH_HEADER;
        for (int32_t i = 0, n = get32(p + at + 57); i < n; i++) {
            int64_t record_length, field;
            r = get_varint(r, &record_length);
            const uint8_t *next = r + record_length, *v = r + 1;
            for (int k = 0; k < 4; k++) v = get_varint(v, &field);
            uint64_t due;
            memcpy(&due, v, sizeof due);
            /* Earlier records (the harness's own probe) carry no due time of this run. */
            if (due >= e2e_began && due <= now) {
                e2e_received++;
                if (due >= measure_from) { records++; note_latency(now - due); }
            }
            r = next;
        }
        c->offset = get64(p + at) + get32(p + at + 23) + 1;
        at += whole;
    }
    if (e2e_received < e2e_due_total) e2e_fetch();
    else stop_at = now;
}

static void start_e2e(void) {
    crc32c_prepare();
    if (opt.record_bytes < 8 || opt.record_bytes > 1024) fail("--record-bytes must be 8..1024 for e2e");
    open_conn(&conns[0], 0, HEAD_MAX + E2E_RECORDS_MAX * 1200 + BATCH_HEADER, 1 << 16);
    open_conn(&conns[1], 0, HEAD_MAX, (size_t)opt.fetch_bytes * 2 + (1 << 16));
    e2e_due_total = (uint64_t)((opt.seconds + opt.warmup) * opt.rate);
    e2e_began = now_ns() + SECOND / 5;  /* the first fetch is parked by then */
    measure_from = e2e_began + (uint64_t)(opt.warmup * 1e9);
    e2e_timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    long interval = (long)(1e9 / opt.rate);
    struct itimerspec every = { .it_interval = { interval / 1000000000, interval % 1000000000 },
                                .it_value = { (time_t)(e2e_began / SECOND), (long)(e2e_began % SECOND) } };
    if (e2e_timer < 0 || timerfd_settime(e2e_timer, TFD_TIMER_ABSTIME, &every, NULL)) fail_errno("timerfd");
    struct epoll_event e = { .events = EPOLLIN, .data.ptr = NULL };
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, e2e_timer, &e)) fail_errno("epoll_ctl");
    e2e_fetch();
}

static void on_e2e_event(struct conn *c, uint32_t what) {
    uint64_t expirations;
    if (!c) {
        if (read(e2e_timer, &expirations, sizeof expirations) > 0) e2e_produce();
        return;
    }
    if (what & EPOLLOUT) flush_conn(c);
    if (what & ~(uint32_t)EPOLLOUT) read_conn(c, c == &conns[0] ? on_e2e_produced : on_e2e_fetched);
}

static void run_e2e(void) {
    struct epoll_event events[EVENTS_MAX];
    uint64_t give_up = e2e_began + (uint64_t)((opt.seconds + opt.warmup + DRAIN_SECONDS) * 1e9);
    while (!stop_at) {
        int n = epoll_wait(epoll_fd, events, EVENTS_MAX, 1000);
        for (int i = 0; i < n; i++) on_e2e_event(events[i].data.ptr, events[i].events);
        if (now_ns() > give_up) fail("the broker does not keep up with the rate");
    }
}

/* ---- The loop of produce and consume, and the result ---- */

static int all_answered(void) {
    for (int i = 0; i < opt.connections; i++)
        if (conns[i].answered < conns[i].queued || conns[i].in_transaction) return 0;
    return 1;
}

static uint64_t run(void (*on_reply)(struct conn *, const uint8_t *, size_t, uint64_t)) {
    struct epoll_event events[EVENTS_MAX];
    uint64_t ended = 0, drain_until = 0;
    for (;;) {
        uint64_t now = now_ns();
        if (!stopping && now >= stop_at && all_ended_one()) {
            stopping = 1;
            ended = now;
            drain_until = now + (uint64_t)(DRAIN_SECONDS * 1e9);
        }
        if (stopping && all_answered()) return ended;
        if (stopping && now > drain_until) fail("requests stayed unanswered");
        int n = epoll_wait(epoll_fd, events, EVENTS_MAX, is_transactional ? 1 : 100);
        for (int i = 0; i < n; i++) {
            struct conn *c = events[i].data.ptr;
            if (events[i].events & ~(uint32_t)EPOLLOUT) read_conn(c, on_reply);
            flush_conn(c);
        }
        if (is_transactional) ask_again();
    }
}

static int compare_latency(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double percentile_ms(double share) {
    if (!latency_count) return 0.0;
    size_t at = (size_t)(share * (double)latency_count);
    if (at >= latency_count) at = latency_count - 1;
    return latencies[at] / 10000.0;
}

static void print_result(double seconds) {
    qsort(latencies, latency_count, sizeof *latencies, compare_latency);
    printf("{\"seconds\": %.6f, \"requests\": %llu, \"records\": %llu, \"bytes\": %llu, "
           "\"requests_all\": %llu, \"records_all\": %llu, "
           "\"transactions\": %llu, \"markers_all\": %llu, \"refused\": %llu, "
           "\"p50_ms\": %.4f, \"p99_ms\": %.4f, \"p999_ms\": %.4f}\n",
           seconds, (unsigned long long)requests, (unsigned long long)records, (unsigned long long)bytes,
           (unsigned long long)requests_all, (unsigned long long)records_all,
           (unsigned long long)transactions, (unsigned long long)markers_all, (unsigned long long)refused,
           percentile_ms(0.50), percentile_ms(0.99), percentile_ms(0.999));
}

/* One port, or those of several brokers with commas between them: broker p % n leads partition p. */
static void parse_ports(const char *text) {
    opt.port_count = 0;
    for (char *end; *text; text = *end ? end + 1 : end) {
        if (opt.port_count == BROKERS_MAX) fail("too many ports");
        int port = (int)strtol(text, &end, 10);
        if (end == text || port <= 0 || port > 65535 || (*end && *end != ',')) fail("--port is not a list of ports");
        opt.ports[opt.port_count++] = port;
    }
}

static void parse_options(int argc, char **argv) {
    if (argc < 2) fail("say produce, idempotent, transactions, consume or e2e");
    opt.mode = argv[1];
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--host")) opt.host = value;
        else if (!strcmp(name, "--port")) parse_ports(value);
        else if (!strcmp(name, "--topic")) opt.topic = value;
        else if (!strcmp(name, "--partitions")) opt.partitions = atoi(value);
        else if (!strcmp(name, "--batch")) opt.batch_path = value;
        else if (!strcmp(name, "--records")) opt.records_per_batch = atoi(value);
        else if (!strcmp(name, "--record-bytes")) opt.record_bytes = atoi(value);
        else if (!strcmp(name, "--acks")) opt.acks = atoi(value);
        else if (!strcmp(name, "--connections")) opt.connections = atoi(value);
        else if (!strcmp(name, "--depth")) opt.depth = atoi(value);
        else if (!strcmp(name, "--transaction-version")) opt.transaction_version = atoi(value);
        else if (!strcmp(name, "--transaction-batches")) opt.batches_per_transaction = atoi(value);
        else if (!strcmp(name, "--abort-every")) opt.abort_every = atoi(value);
        else if (!strcmp(name, "--isolation")) opt.isolation = atoi(value);
        else if (!strcmp(name, "--fetch-bytes")) opt.fetch_bytes = atoll(value);
        else if (!strcmp(name, "--bytes-max")) opt.bytes_max = atoll(value);
        else if (!strcmp(name, "--rate")) opt.rate = atof(value);
        else if (!strcmp(name, "--warmup")) opt.warmup = atof(value);
        else if (!strcmp(name, "--seconds")) opt.seconds = atof(value);
        else { fprintf(stderr, "load: unknown option %s\n", name); exit(2); }
    }
    if (argc % 2) fail("an option without a value");
    if (!opt.port_count || opt.connections <= 0 || opt.depth <= 0 || opt.partitions <= 0) fail("counts must be positive");
    if (strlen(opt.topic) > 100) fail("--topic is too long");
    if (opt.partitions > PARTITIONS_MAX) fail("too many --partitions");
}

int main(int argc, char **argv) {
    parse_options(argc, argv);
    int consume = !strcmp(opt.mode, "consume"), e2e = !strcmp(opt.mode, "e2e");
    int numbered = !strcmp(opt.mode, "idempotent");
    is_transactional = !strcmp(opt.mode, "transactions");
    if (e2e) opt.connections = 2;
    if (!consume && !e2e && !opt.batch_path) fail("what is produced must be named with --batch FILE");
    if ((epoll_fd = epoll_create1(0)) < 0) fail_errno("epoll_create1");
    if (!(conns = calloc((size_t)opt.connections, sizeof *conns))) fail("out of memory");
    note_latency(0);          /* allocates before the clock starts */
    latency_count = 0;

    if (e2e) {
        start_e2e();
        run_e2e();
        print_result((double)(stop_at - measure_from) / 1e9);
        return 0;
    }
    void (*on_reply)(struct conn *, const uint8_t *, size_t, uint64_t) = on_produce_reply;
    if (consume) on_reply = on_fetch_reply, start_consume();
    else if (numbered || is_transactional) on_reply = on_producer_reply, start_producers();
    else if (!strcmp(opt.mode, "produce")) start_produce();
    else fail("an unknown mode");
    uint64_t ended = run(on_reply);
    print_result((double)(ended - began) / 1e9);
    return 0;
}
