/* load_producers: the part of load.c for producers with an id, idempotent or transactional. It is included there.
 *
 *   BEGINNING --> ADDING --> SENDING --(all batches are answered)--> ENDING --> BEGINNING
 *
 * Partitions are added by AddPartitionsToTxn (version 1), or by a Produce with the first batch of each (version 2).
 * An answer CONCURRENT_TRANSACTIONS means that the markers of the transaction before are still being written. Real
 * clients then wait for longer; here the request is repeated after 1 ms, to see the broker's time and not theirs. */

static struct producer {
    char name[128];
    enum { BEGINNING, ADDING, SENDING, ENDING } step;
    int64_t id;
    int16_t epoch;
    int32_t sequences[PARTITIONS_MAX];
    uint64_t ended;           /* transactions so far */
    int batches;
    uint64_t again_at;
} *producers;

static uint32_t body_crc, crc_past_body[32];

/* Every batch has its own sequence and so its own checksum, but only the header differs. A CRC is linear, so what the
 * records do to the state they find is known beforehand, bit by bit. */
static void prepare_checksums(void) {
    static const uint8_t zeros[4096];
    crc32c_prepare();
    body_crc = crc_continue(0, body, body_length - 3);
    for (int bit = 0; bit < 32; bit++) {
        uint32_t c = 1u << bit;
        for (size_t left = body_length - 3, n; left; left -= n) {
            n = left < sizeof zeros ? left : sizeof zeros;
            c = crc_continue(c, zeros, n);
        }
        crc_past_body[bit] = c;
    }
}

static uint32_t batch_crc(const uint8_t *header) {
    uint32_t before = crc_continue(~0u, header + 21, BATCH_HEADER - 21), c = body_crc;
    for (int bit = 0; before; bit++, before >>= 1)
        if (before & 1) c ^= crc_past_body[bit];
    return ~c;
}

static uint8_t *put_batch_header(uint8_t *b, struct producer *p, int partition) {
    memcpy(b, batch_header, BATCH_HEADER);
    put16(b + 21, (int16_t)(get16(b + 21) | (is_transactional ? ATTRIBUTE_TRANSACTIONAL : 0)));
    put32(put16(put64(b + 43, p->id), p->epoch), p->sequences[partition]);
    put32(b + 17, (int32_t)batch_crc(b));
    uint32_t next = (uint32_t)p->sequences[partition] + (uint32_t)opt.records_per_batch;
    p->sequences[partition] = (int32_t)(next & 0x7fffffff);
    p->batches++;
    return b + BATCH_HEADER;
}

static int next_partition(const struct conn *c, const struct producer *p) {
    return (p->batches + (int)(c - conns)) % opt.partitions;
}

static void queue_batch(struct conn *c, struct producer *p, uint64_t now) {
    struct slot *s = next_slot(c);
    int16_t version = is_transactional && opt.transaction_version == 1 ? 11 : 12;
    int partition = next_partition(c, p);
    size_t n = encode_produce_head(
        s->head, version, is_transactional ? p->name : NULL, partition, BATCH_HEADER + body_length - 3);
    s->head_length = (size_t)(put_batch_header(s->head + n, p, partition) - s->head);
    s->body_length = body_length;
    queue_request(c, now);
}

static int first_batches(void) {
    return opt.partitions < opt.batches_per_transaction ? opt.partitions : opt.batches_per_transaction;
}

static void queue_first_batches(struct conn *c, struct producer *p, uint64_t now) {
    struct slot *s = next_slot(c);
    uint8_t *b = put_produce_start(s->head, 12, p->name, first_batches());
    for (int i = 0; i < first_batches(); i++) {
        int partition = next_partition(c, p);
        b = put32(b, partition);
        b = put_uvarint(b, BATCH_HEADER + body_length - 3 + 1);
        b = put_batch_header(b, p, partition);
        b = put_bytes(b, body, body_length - 3);
        *b++ = 0;
    }
    *b++ = 0;
    *b++ = 0;
    s->head_length = close_request(s->head, b);
    s->body_length = 0;
    queue_request(c, now);
}

static void queue_add_partitions(struct conn *c, struct producer *p, uint64_t now) {
    struct slot *s = next_slot(c);
    uint8_t *b = put_string(put_request_header(s->head, 24, 2), p->name);
    b = put32(put16(put64(b, p->id), p->epoch), 1);
    b = put32(put_string(b, opt.topic), opt.partitions);
    for (int i = 0; i < opt.partitions; i++) b = put32(b, i);
    s->head_length = close_request(s->head, b);
    s->body_length = 0;
    queue_request(c, now);
}

static int is_abort(const struct producer *p) {
    return opt.abort_every && (p->ended + 1) % (uint64_t)opt.abort_every == 0;
}

static void queue_end(struct conn *c, struct producer *p, uint64_t now) {
    struct slot *s = next_slot(c);
    int is_flexible = opt.transaction_version == 2;
    uint8_t *b = put_request_header(s->head, 26, is_flexible ? 5 : 2);
    if (is_flexible) *b++ = 0;
    b = is_flexible ? put_compact_string(b, p->name) : put_string(b, p->name);
    b = put16(put64(b, p->id), p->epoch);
    *b++ = !is_abort(p);
    if (is_flexible) *b++ = 0;
    s->head_length = close_request(s->head, b);
    s->body_length = 0;
    queue_request(c, now);
}

/* Sends all that may be sent now. */
static void producer_next(struct conn *c, uint64_t now) {
    struct producer *p = &producers[c - conns];
    if (p->again_at > now) return;
    p->again_at = 0;
    if (is_transactional && p->step == BEGINNING) {
        if (stopping) { c->in_transaction = 0; return; }
        c->in_transaction = 1;
        p->step = ADDING;
        if (opt.transaction_version == 1) queue_add_partitions(c, p, now);
        else queue_first_batches(c, p, now);
    }
    if (p->step != SENDING) return;
    int batches = is_transactional ? opt.batches_per_transaction : INT_MAX;
    while (!stopping && p->batches < batches && c->queued - c->answered < (uint64_t)opt.depth) queue_batch(c, p, now);
    if (!is_transactional || c->queued > c->answered) return;
    p->step = ENDING;
    queue_end(c, p, now);
}

static void on_batches_stored(uint64_t batches) {
    requests_all++;
    records_all += batches * (uint64_t)opt.records_per_batch;
    if (stopping) return;
    requests++;
    records += batches * (uint64_t)opt.records_per_batch;
    bytes += batches * (BATCH_HEADER + body_length - 3);
}

static void forget_batches(struct producer *p) {
    memset(p->sequences, 0, sizeof p->sequences);
    p->batches = 0;
}

static void on_end_reply(struct producer *p, const uint8_t *reply, uint64_t took) {
    markers_all += (uint64_t)(opt.transaction_version == 1 ? opt.partitions : first_batches());
    if (opt.transaction_version == 2) {
        p->id = get64(reply + 11);
        p->epoch = get16(reply + 19);
        forget_batches(p);
    }
    if (!stopping) {
        transactions++;
        note_latency(took);
    }
    p->ended++;
    p->batches = 0;
    p->step = BEGINNING;
}

/* The first error code of a reply. What a partition's part of it takes is known as long as there is none. */
static int reply_code(const struct producer *p, const uint8_t *reply) {
    if (p->step == SENDING) return produce_code(reply);
    if (p->step == ENDING) return get16(reply + (opt.transaction_version == 2 ? 9 : 8));
    int is_produce = opt.transaction_version == 2;
    const uint8_t *part = reply + (is_produce ? 8 : 18) + strlen(opt.topic);
    for (int i = is_produce ? first_batches() : opt.partitions; i; i--, part += is_produce ? 33 : 6)
        if (get16(part + 4)) return get16(part + 4);
    return 0;
}

static void on_producer_reply(struct conn *c, const uint8_t *reply, size_t size, uint64_t now) {
    (void)size;
    struct producer *p = &producers[c - conns];
    uint64_t took = now - c->slots[c->answered % (uint64_t)opt.depth].queued_at;
    int code = reply_code(p, reply);
    expect_correlation(c, reply);
    if (code == CONCURRENT_TRANSACTIONS && p->step != SENDING) {
        refused++;
        p->again_at = now + AGAIN_NS;
        if (p->step == ADDING && opt.transaction_version == 2) forget_batches(p);
        p->step = p->step == ADDING ? BEGINNING : SENDING;
        return;
    }
    if (code) fail_code((const char *[]){ "", "AddPartitionsToTxn", "Produce", "EndTxn" }[p->step], code);
    if (p->step == SENDING || (p->step == ADDING && opt.transaction_version == 2))
        on_batches_stored(p->step == ADDING ? (uint64_t)first_batches() : 1);
    if (!is_transactional && !stopping) note_latency(took);
    if (p->step == ENDING) on_end_reply(p, reply, took);
    else p->step = SENDING;
    if (bytes >= (uint64_t)opt.bytes_max) stop_at = now;
    producer_next(c, now);
}

/* A run too short for a slow broker's first transaction is made longer. */
static int all_ended_one(void) {
    for (int i = 0; is_transactional && i < opt.connections; i++)
        if (!producers[i].ended) return 0;
    return 1;
}

static void ask_again(void) {
    uint64_t now = now_ns();
    for (int i = 0; i < opt.connections; i++)
        if (conns[i].answered == conns[i].queued) {
            producer_next(&conns[i], now);
            flush_conn(&conns[i]);
        }
}

/* InitProducerId v1, before the clock starts; the connection waits for the answer. */
static void init_producer(struct conn *c, struct producer *p) {
    uint8_t request[HEAD_MAX], reply[64];
    uint8_t *b = put_request_header(request, 22, 1);
    b = put32(put_string(b, is_transactional ? p->name : NULL), 60000);
    size_t length = close_request(request, b);
    for (uint64_t give_up = now_ns() + 20 * SECOND;; usleep(10000)) {
        if (fcntl(c->fd, F_SETFL, 0)) fail_errno("fcntl");
        if (send(c->fd, request, length, 0) != (ssize_t)length) fail_errno("write");
        if (recv(c->fd, reply, 4, MSG_WAITALL) != 4) fail("the broker closed the connection");
        size_t size = (size_t)get32(reply);
        if (size > sizeof reply || recv(c->fd, reply, size, MSG_WAITALL) != (ssize_t)size) fail("a broken reply");
        if (fcntl(c->fd, F_SETFL, O_NONBLOCK)) fail_errno("fcntl");
        int code = get16(reply + 8);
        int is_early = code == COORDINATOR_LOADING || code == COORDINATOR_NOT_AVAILABLE || code == NOT_COORDINATOR;
        if (code && (now_ns() > give_up || !(is_early || code == CONCURRENT_TRANSACTIONS)))
            fail_code("InitProducerId", code);
        if (code) continue;
        p->id = get64(reply + 10);
        p->epoch = get16(reply + 18);
        return;
    }
}

static void start_producers(void) {
    load_body(BATCH_HEADER);
    prepare_checksums();
    if (!(producers = calloc((size_t)opt.connections, sizeof *producers))) fail("out of memory");
    for (int i = 0; i < opt.connections; i++) {
        struct producer *p = &producers[i];
        open_conn(&conns[i], 0, HEAD_MAX + (size_t)opt.partitions * (BATCH_HEADER + body_length + 16), 1 << 16);
        snprintf(p->name, sizeof p->name, "%s-%d", opt.topic, i);
        p->step = is_transactional ? BEGINNING : SENDING;
        init_producer(&conns[i], p);
    }
    start_clock();
    for (int i = 0; i < opt.connections; i++) {
        producer_next(&conns[i], began);
        flush_conn(&conns[i]);
    }
}
