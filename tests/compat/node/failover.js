// A producer and a member of a group that run while brokers are killed: see tests/compat/client_failover.py.
//
//   node failover.js BOOTSTRAP TOPIC GROUP

const { Kafka, logLevel } = require('kafkajs')

const [bootstrap, topic, groupId] = process.argv.slice(2)
const say = (kind, text) => process.stdout.write(`${kind} ${text}\n`)
const kafka = new Kafka({ clientId: 'failover', brokers: bootstrap.split(','), logLevel: logLevel.NOTHING })
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

const main = async () => {
  const producer = kafka.producer({ retry: { retries: 50, initialRetryTime: 50, maxRetryTime: 1000 } })
  const consumer = kafka.consumer({ groupId, sessionTimeout: 10000 })
  // After five failed retries kafkajs restarts its consumer by itself.
  consumer.on(consumer.events.CRASH, ({ payload: { error, restart } }) =>
    say('E', `consumer ${restart ? 'restarts' : 'ends'}: ${error}`)
  )
  await producer.connect()
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => say('R', message.value.toString()) })
  let isStopped = false
  let end
  const ended = new Promise((resolve) => (end = resolve))
  require('readline').createInterface({ input: process.stdin }).on('line', (line) => {
    if (line === 'stop') isStopped = true
    else end()
  })
  const sent = new Set()
  for (let number = 0; !isStopped; number++) {
    const value = `v${number}`
    const one = producer
      .send({ topic, acks: -1, messages: [{ value }] })
      .then(() => say('A', value))
      .catch((error) => say('E', `produce: ${error.message}`))
      .finally(() => sent.delete(one))
    sent.add(one)
    await pause(10)
  }
  await Promise.all(sent)
  say('S', 'stopped')
  await ended
  process.exit(0)
}

main().catch((error) => {
  say('E', `ended: ${error.stack}`)
  process.exit(1)
})
