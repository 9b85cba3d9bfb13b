// MQTT.js against `quelea serve`, over TCP and over WebSocket, with 3.1.1 and 5.

import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { after, before, describe, test } from 'node:test'
import { fileURLToPath } from 'node:url'

import mqtt from 'mqtt'

const here = dirname(fileURLToPath(import.meta.url))
const quelea = process.env.QUELEA_BIN ?? join(here, '../../target/debug/quelea')
const directory = mkdtempSync(join(tmpdir(), 'quelea-js-'))
const urls = {}
const log = []
let broker
let clients = []

const config = `
[[listeners]]
url = "tcp://127.0.0.1:0"
allow_anonymous = true
[[listeners]]
url = "ws://127.0.0.1:0/mqtt"
allow_anonymous = true
[http]
listen = "127.0.0.1:0"
`

before(async () => {
  const file = join(directory, 'quelea.toml')
  writeFileSync(file, config)
  const flags = ['serve', '--log-format=json', `--config=${file}`, `--data=${directory}/data`]
  broker = spawn(quelea, flags, { stdio: ['ignore', 'ignore', 'pipe'] })
  for await (const line of createInterface({ input: broker.stderr })) {
    log.push(line)
    const event = JSON.parse(line)
    const { message, url } = { ...event, ...event.fields }
    if (message === 'listening') urls[url.split(':')[0]] = url
    if (message === 'ready') break
  }
  assert.ok(urls.tcp && urls.ws, log.join('\n'))
  broker.stderr.resume()
})

after(async () => {
  if (broker.exitCode === null) {
    broker.kill('SIGTERM')
    await once(broker, 'exit')
  }
  rmSync(directory, { recursive: true, force: true })
})

async function connect (url, options) {
  const client = await mqtt.connectAsync(url.replace('tcp:', 'mqtt:'), options)
  clients.push(client)
  return client
}

async function closeAll () {
  await Promise.all(clients.map(client => client.endAsync()))
  clients = []
}

function next (client) {
  return once(client, 'message').then(([topic, payload, packet]) => ({ topic, payload, packet }))
}

for (const scheme of ['tcp', 'ws']) {
  for (const protocolVersion of [4, 5]) {
    describe(`MQTT.js over ${scheme}, version ${protocolVersion}`, () => {
      const prefix = `js/${scheme}/${protocolVersion}`

      test('publishes and receives at every QoS', async () => {
        const client = await connect(urls[scheme], { protocolVersion })
        await client.subscribeAsync(`${prefix}/#`, { qos: 2 })
        for (const qos of [0, 1, 2]) {
          const message = next(client)
          await client.publishAsync(`${prefix}/${qos}`, `payload ${qos}`, { qos })
          const { topic, payload, packet } = await message
          assert.equal(topic, `${prefix}/${qos}`)
          assert.equal(payload.toString(), `payload ${qos}`)
          assert.equal(packet.qos, qos)
        }
        await closeAll()
      })

      test('carries a large payload', async () => {
        const client = await connect(urls[scheme], { protocolVersion })
        const sent = Buffer.alloc(1_000_000, 'quelea')
        await client.subscribeAsync(`${prefix}/large`, { qos: 1 })
        const message = next(client)
        await client.publishAsync(`${prefix}/large`, sent, { qos: 1 })
        assert.deepEqual((await message).payload, sent)
        await closeAll()
      })

      test('gets what is retained, and a will', async () => {
        const client = await connect(urls[scheme], { protocolVersion })
        await client.publishAsync(`${prefix}/kept`, 'kept', { qos: 1, retain: true })
        const message = next(client)
        await client.subscribeAsync(`${prefix}/kept`)
        const { payload, packet } = await message
        assert.equal(payload.toString(), 'kept')
        assert.equal(packet.retain, true)
        await client.subscribeAsync(`${prefix}/will`)
        const will = { topic: `${prefix}/will`, payload: Buffer.from('gone'), qos: 1 }
        const victim = await connect(urls[scheme], { protocolVersion, will, reconnectPeriod: 0 })
        const farewell = next(client)
        victim.stream.destroy()
        assert.equal((await farewell).payload.toString(), 'gone')
        await closeAll()
      })

      test('finds its session again', async () => {
        const options = {
          protocolVersion,
          clientId: `js-${scheme}-${protocolVersion}`,
          clean: false,
          properties: protocolVersion === 5 ? { sessionExpiryInterval: 600 } : undefined
        }
        const first = await connect(urls[scheme], options)
        await first.subscribeAsync(`${prefix}/session`, { qos: 1 })
        await closeAll()
        const sender = await connect(urls[scheme], { protocolVersion })
        await sender.publishAsync(`${prefix}/session`, 'while away', { qos: 1 })
        const second = mqtt.connect(urls[scheme].replace('tcp:', 'mqtt:'), options)
        clients.push(second)
        const message = next(second)
        const [connack] = await once(second, 'connect')
        assert.equal(connack.sessionPresent, true)
        assert.equal((await message).payload.toString(), 'while away')
        await closeAll()
      })
    })
  }
}

test('MQTT.js and the properties of MQTT 5', async () => {
  const options = { protocolVersion: 5, properties: { topicAliasMaximum: 5 } }
  const client = await connect(urls.ws, options)
  const subscription = { qos: 1, properties: { subscriptionIdentifier: 7 } }
  await client.subscribeAsync('js/properties', subscription)
  const message = next(client)
  const properties = {
    contentType: 'text/plain',
    responseTopic: 'js/answer',
    correlationData: Buffer.from([0, 1]),
    userProperties: { a: ['1', '2'], b: '3' },
    payloadFormatIndicator: true,
    messageExpiryInterval: 100
  }
  await client.publishAsync('js/properties', 'x', { qos: 1, properties })
  const got = (await message).packet.properties
  assert.equal(got.contentType, 'text/plain')
  assert.equal(got.responseTopic, 'js/answer')
  assert.deepEqual([...got.correlationData], [0, 1])
  assert.deepEqual({ ...got.userProperties }, { a: ['1', '2'], b: '3' })
  assert.equal(got.subscriptionIdentifier, 7)
  assert.ok(got.messageExpiryInterval <= 100)
  await closeAll()
})

test('MQTT.js with topic aliases of its own', async () => {
  const client = await connect(urls.tcp, { protocolVersion: 5, autoAssignTopicAlias: true })
  await client.subscribeAsync('js/alias', { qos: 1 })
  for (const round of ['one', 'two', 'three']) {
    const message = next(client)
    await client.publishAsync('js/alias', round, { qos: 1 })
    assert.equal((await message).payload.toString(), round)
  }
  await closeAll()
})
