// kafkajs as a command: reads one JSON object from standard input, calls the client, writes one JSON object.
//
//   {"bootstrap": ..., "do": "produce", "producer": {...}, "send": {...}}      arguments of producer() and send()
//   {"bootstrap": ..., "do": "admin", "calls": [["createTopics", {...}], ...]} methods of the admin client, in order
//   {"bootstrap": ..., "do": "fetch", "topic": ..., "partition": 0, "offset": 0} one fetch, below the consumer
//
// An error becomes {"error": {"code": ..., "type": ..., "message": ...}}. Buffers travel as {"base64": "..."}.

const { Kafka, logLevel } = require('kafkajs')

const revive = (_, value) =>
  value && typeof value.base64 === 'string' ? Buffer.from(value.base64, 'base64') : value

const explain = (error) => {
  const cause = (error.errors && error.errors[0]) || error.cause || error
  const { code, type } = cause.code === undefined && error.code !== undefined ? error : cause
  return { error: { code: code ?? null, type: type ?? null, message: String(cause.message) } }
}

const produce = async (kafka, { producer: settings, send }) => {
  const producer = kafka.producer(settings)
  await producer.connect()
  try {
    return { result: await producer.send(send) }
  } finally {
    await producer.disconnect()
  }
}

const administer = async (kafka, { calls }) => {
  const admin = kafka.admin({ retry: { retries: 0 } })
  await admin.connect()
  const results = []
  try {
    for (const [method, ...args] of calls) {
      try {
        results.push({ result: (await admin[method](...args)) ?? null })
      } catch (error) {
        results.push(explain(error))
      }
    }
  } finally {
    await admin.disconnect()
  }
  return { result: results }
}

// kafkajs's consumer knows only groups. What stands below it, the connection, the requests and the decoding of
// batches, is used here without one.
const fetchOnce = async (_, { bootstrap, topic, partition, offset }) => {
  const Cluster = require('kafkajs/src/cluster')
  const cluster = new Cluster({
    logger: require('kafkajs/src/loggers').createLogger({
      level: logLevel.NOTHING,
      logCreator: require('kafkajs/src/loggers/console'),
    }),
    socketFactory: require('kafkajs/src/network/socketFactory')(),
    instrumentationEmitter: new (require('kafkajs/src/instrumentation/emitter'))(),
    brokers: [bootstrap],
    clientId: 'kafkajs',
    connectionTimeout: 1000,
    authenticationTimeout: 10000,
    requestTimeout: 30000,
    enforceRequestTimeout: true,
    metadataMaxAge: 300000,
    allowAutoTopicCreation: false,
    maxInFlightRequests: null,
    isolationLevel: 0,
    offsets: new Map(),
    retry: { retries: 2 },
  })
  await cluster.connect()
  try {
    await cluster.addTargetTopic(topic)
    const { leader } = cluster.findTopicPartitionMetadata(topic).find((p) => p.partitionId === partition)
    const broker = await cluster.findBroker({ nodeId: String(leader) })
    const { responses } = await broker.fetch({
      topics: [{ topic, partitions: [{ partition, fetchOffset: String(offset), maxBytes: 1 << 20 }] }],
      isolationLevel: 0,
      maxWaitTime: 500,
      minBytes: 1,
      maxBytes: 10 << 20,
      rackId: '',
    })
    const text = (buffer) => (buffer === null ? null : buffer.toString('base64'))
    const { messages } = responses[0].partitions[0]
    return { result: messages.map((m) => ({ offset: m.offset, key: text(m.key), value: text(m.value) })) }
  } finally {
    await cluster.disconnect()
  }
}

const main = async () => {
  const chunks = []
  for await (const chunk of process.stdin) chunks.push(chunk)
  const task = JSON.parse(Buffer.concat(chunks).toString(), revive)
  const kafka = new Kafka({ brokers: [task.bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 2 } })
  const act = { produce, fetch: fetchOnce, admin: administer }[task.do]
  const answer = await act(kafka, task).catch(explain)
  process.stdout.write(JSON.stringify(answer, (_, v) => (typeof v === 'bigint' ? String(v) : v)))
}

main()
