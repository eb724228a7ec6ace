// kafkajs as a command: reads one JSON object from standard input, calls the client, writes one JSON object.
//
//   {"bootstrap": ..., "do": "produce", "producer": {...}, "send": {...}}      arguments of producer() and send()
//   {"bootstrap": ..., "do": "admin", "calls": [["createTopics", {...}], ...]} methods of the admin client, in order
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

const main = async () => {
  const chunks = []
  for await (const chunk of process.stdin) chunks.push(chunk)
  const task = JSON.parse(Buffer.concat(chunks).toString(), revive)
  const kafka = new Kafka({ brokers: [task.bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 2 } })
  const act = task.do === 'produce' ? produce : administer
  const answer = await act(kafka, task).catch(explain)
  process.stdout.write(JSON.stringify(answer, (_, v) => (typeof v === 'bigint' ? String(v) : v)))
}

main()
