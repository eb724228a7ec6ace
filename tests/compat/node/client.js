// kafkajs as a command: reads one JSON object from standard input, calls the client, writes one JSON object.
//
//   {"bootstrap": ..., "do": "produce", "producer": {...}, "send": {...}}      arguments of producer() and send()
//   {"bootstrap": ..., "do": "transact", "producer": {...}, "steps": [{"sends": [{...}], "offsets": {...}, "end": ...}]}
//       transactions one after another: "end" is commit or abort, "offsets" are the arguments of sendOffsets
//   {"bootstrap": ..., "do": "admin", "calls": [["createTopics", {...}], ...]} methods of the admin client, in order
//   {"bootstrap": ..., "do": "consume", "members": [{...}, ...], "subscribe": {...}, "run": {...}, "count": ...}
//       consumers of a group, by the arguments of consumer(): each must be given partitions, and together they must
//       receive "count" records. Optional, in this order: "seek" before the first record, "send" once the members
//       share the partitions, "commit" and "calls" of the admin client while the members are still there.
//
//   {"do": "secure", "clients": [{...}, ...], "topic": ...}                    one record over each client: arguments of
//       Kafka() by client. A record goes to the partition with the number of its client, and its consumer reads it.
//
// An error becomes {"error": {"code": ..., "type": ..., "message": ...}}. Buffers travel as {"base64": "..."}, regular
// expressions as {"pattern": "..."}.

const { Kafka, logLevel, CompressionCodecs, CompressionTypes } = require('kafkajs')

// What kafkajs leaves to packages.
const lz4 = require('lz4-napi')
CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: async (buffer) => lz4.decompressFrame(buffer),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => {
  const zstd = new Promise((resolve) => require('zstd-codec').ZstdCodec.run((z) => resolve(new z.Streaming())))
  return {
    compress: async (encoder) => Buffer.from((await zstd).compress(encoder.buffer)),
    decompress: async (buffer) => Buffer.from((await zstd).decompress(buffer)),
  }
}

const revive = (_, value) => {
  if (value && typeof value.base64 === 'string') return Buffer.from(value.base64, 'base64')
  return value && typeof value.pattern === 'string' ? new RegExp(value.pattern) : value
}

const replace = function (name, value) {
  const raw = this[name] // Before Buffer.toJSON.
  if (Buffer.isBuffer(raw)) return { base64: raw.toString('base64') }
  return typeof value === 'bigint' ? String(value) : value
}

const explain = (error) => {
  const cause = (error.errors && error.errors[0]) || error.cause || error
  const { code, type } = cause.code === undefined && error.code !== undefined ? error : cause
  return { error: { code: code ?? null, type: type ?? null, message: String(cause.message), groups: error.groups } }
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

const transact = async (kafka, { producer: settings, steps }) => {
  const producer = kafka.producer({ maxInFlightRequests: 1, idempotent: true, ...settings })
  await producer.connect()
  try {
    for (const { sends, offsets, end } of steps) {
      const transaction = await producer.transaction()
      for (const send of sends) await transaction.send(send)
      if (offsets) await transaction.sendOffsets(offsets)
      await transaction[end]()
    }
    return { result: null }
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

const consume = async (kafka, task) => {
  const members = task.members.map((settings) => ({
    consumer: kafka.consumer({ maxWaitTimeInMs: 100, heartbeatInterval: 200, ...settings }),
    assignment: null,
    records: [],
  }))
  try {
    const calls = await whileTheyRun(kafka, members, task)
    return { result: { members: members.map(({ assignment, records }) => ({ assignment, records })), calls } }
  } finally {
    await Promise.all(members.map(({ consumer }) => consumer.disconnect()))
  }
}

const whileTheyRun = async (kafka, members, { subscribe, run, seek, count, send, commit, calls }) => {
  let changed = () => {}
  let crash = null
  for (const member of members) {
    const { consumer, records } = member
    consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
      member.assignment = payload.memberAssignment
      changed()
    })
    consumer.on(consumer.events.CRASH, ({ payload }) => {
      crash = payload.error
      changed()
    })
    await consumer.connect()
    await consumer.subscribe(subscribe)
    const eachMessage = async ({ topic, partition, message }) => {
      records.push({ topic, partition, ...message })
      changed()
    }
    await consumer.run({ ...run, eachMessage })
    for (const place of seek ?? []) consumer.seek(place)
  }
  const until = (satisfied) =>
    new Promise((resolve, reject) => {
      changed = () => (crash ? reject(crash) : satisfied() && resolve())
      changed()
    })
  await until(() => members.every(({ assignment }) => assignment && Object.keys(assignment).length))
  if (send) await produce(kafka, { producer: {}, send })
  await until(() => members.reduce((sum, { records }) => sum + records.length, 0) >= count)
  if (commit) await members[0].consumer.commitOffsets(commit)
  return calls ? (await administer(kafka, { calls })).result : []
}

const secure = async (_, { clients, topic }) => {
  const roundTrip = async (settings, partition) => {
    const token = settings.sasl?.token
    if (token) settings.sasl.oauthBearerProvider = async () => ({ value: token })
    const kafka = new Kafka({ logLevel: logLevel.NOTHING, retry: { retries: 2 }, ...settings })
    const value = `record ${partition}`
    await produce(kafka, { producer: {}, send: { topic, messages: [{ partition, value }] } })
    const members = [{ groupId: `${topic}-${partition}` }]
    const task = { members, subscribe: { topics: [topic], fromBeginning: true }, run: {}, count: 1 }
    await consume(kafka, task)
    return value
  }
  return { result: await Promise.all(clients.map(roundTrip)) }
}

const main = async () => {
  const chunks = []
  for await (const chunk of process.stdin) chunks.push(chunk)
  const task = JSON.parse(Buffer.concat(chunks).toString(), revive)
  const kafka = new Kafka({ brokers: (task.bootstrap ?? '').split(','), logLevel: logLevel.NOTHING, retry: { retries: 2 } })
  const act = { produce, transact, consume, secure, admin: administer }[task.do]
  const answer = await act(kafka, task).catch(explain)
  process.stdout.write(JSON.stringify(answer, replace))
}

main()
