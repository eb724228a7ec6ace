// Confluent's registry client and serializers for JavaScript, as a command: it calls their methods once.
//
//   node registry.js < task      the task and the answer are one JSON object; ../../registry_clients.py describes both
'use strict';

const fs = require('fs');
const https = require('https');
const { create, createFileRegistry, createMutableRegistry, fromJson } = require('@bufbuild/protobuf');
const { FileDescriptorProtoSchema } = require('@bufbuild/protobuf/wkt');
const registry = require('@confluentinc/schemaregistry');

const record = (...fields) => JSON.stringify({ type: 'record', name: 'Order', namespace: 'node', fields });
const FIRST = record({ name: 'id', type: 'int' });
const SECOND = record({ name: 'id', type: 'long' }, { name: 'currency', type: 'string', default: 'EUR' });
const BROKEN = record({ name: 'other', type: 'string' });
const OBJECT = JSON.stringify({ type: 'object', title: 'Order', properties: { id: { type: 'integer' } } });
// The client caches what it has seen; a call with a fresh client is a request.
const connect = task => new registry.SchemaRegistryClient({
  baseURLs: task.urls,
  ...(task.user && { basicAuthCredentials: { credentialsSource: 'USER_INFO', userInfo: `${task.user}:${task.password}` } }),
  ...(task.ca && { createAxiosDefaults: { httpsAgent: new https.Agent({ ca: fs.readFileSync(task.ca) }) } }),
});

async function main() {
  const task = JSON.parse(fs.readFileSync(0, 'utf8'));
  const calls = {};
  // An error of the registry is its code.
  const note = async (name, call) => {
    try {
      calls[name] = await call();
    } catch (error) {
      if (error.errorCode === undefined) throw error;
      calls[name] = error.errorCode;
    }
  };
  await subjects(task, note);
  await settings(task, note);
  await contexts(task, note);
  await associations(task, note);
  await deletions(task, note);
  const data = await encode(task);
  process.stdout.write(JSON.stringify({ calls, read: await decode(task), data, evolved: await evolve(task) }));
}

async function subjects(task, note) {
  const client = connect(task);
  const subject = `${task.prefix}-value`;
  const rule = { name: 'positive', kind: 'CONDITION', mode: 'WRITE', type: 'CEL', expr: 'message.id > 0' };
  const first = {
    schema: FIRST, schemaType: 'AVRO', metadata: { properties: { owner: 'node' }, tags: { '**': ['PII'] } },
    ruleSet: { domainRules: [rule] },
  };
  const made = await client.registerFullResponse(subject, first);
  await note('register', () => [made.version, made.guid.length]);
  const fresh = connect(task);
  await note('register again', async () => await fresh.register(subject, first) === made.id);
  await note('by subject and id', async () => (await fresh.getBySubjectAndId(subject, made.id)).schema === FIRST);
  await note('by guid', async () => (await fresh.getByGuid(made.guid)).schema === FIRST);
  await note('unknown id', () => fresh.getBySubjectAndId(subject, 2000000000));
  await note('lookup', async () => await connect(task).getId(subject, first) === made.id);
  await note('lookup of an unknown schema', () => fresh.getId(subject, { schema: '"string"' }));
  await note('second version', async () => (await client.registerFullResponse(subject, { schema: SECOND })).version);
  await note('latest', async () => (await fresh.getLatestSchemaMetadata(subject)).version);
  await note('metadata', async () => (await fresh.getSchemaMetadata(subject, 1)).metadata);
  await note('rules', async () => (await fresh.getSchemaMetadata(subject, 1)).ruleSet.domainRules[0].expr);
  await note('unknown version', () => fresh.getSchemaMetadata(subject, 9));
  await note('with metadata', async () => (await fresh.getLatestWithMetadata(subject, { owner: 'node' })).version);
  await note('versions', () => fresh.getAllVersions(subject));
  await note('version of a schema', () => connect(task).getVersion(subject, first));
  await note('subjects', async () => (await fresh.getAllSubjects()).includes(subject));
  await note('incompatible', () => client.register(subject, { schema: BROKEN }));
  await note('not a schema', () => client.register(subject, { schema: '{"type":"record"}' }));
  await note('check', () => client.testSubjectCompatibility(subject, { schema: BROKEN }));
  await note('check a version', () => client.testCompatibility(subject, 1, { schema: SECOND }));
  const outer = JSON.stringify({ type: 'record', name: 'Cart', fields: [{ name: 'order', type: 'node.Order' }] });
  const references = [{ name: 'node.Order', subject, version: 2 }];
  const cart = await client.register(`${task.prefix}-cart`, { schema: outer, references });
  await note('references', async () => (await fresh.getBySubjectAndId(`${task.prefix}-cart`, cart)).references.length);
  await note('delete what is referenced', () => client.deleteSubject(subject));
}

async function settings(task, note) {
  const client = connect(task);
  const subject = `${task.prefix}-value`;
  await note('level of the subject before', () => client.getCompatibility(subject));
  await note('set level', () => client.updateCompatibility(subject, 'FULL'));
  await note('level', () => client.getCompatibility(subject));
  await note('set config', () => client.updateConfig(subject, { compatibility: 'BACKWARD', normalize: true }));
  await note('config', () => client.getConfig(subject));
  await note('default level', () => client.getDefaultCompatibility());
  await note('default config', () => client.getDefaultConfig());
  await note('wrong level', () => client.updateCompatibility(subject, 'SOME'));
}

async function contexts(task, note) {
  const client = connect(task);
  const subject = `:.${task.prefix}:s`;
  await note('register in a context', () => client.register(subject, { schema: '"bytes"' }));
  await note('by id in a context', async () => (await connect(task).getBySubjectAndId(subject, 1)).schema);
}

// The serializer finds the subject of a topic through its association, which has another name.
async function associations(task, note) {
  const client = connect(task);
  const [subject, topic, id] = [`${task.prefix}-shared`, `${task.prefix}-topic`, `${task.prefix}-id`];
  await client.register(subject, { schema: FIRST });
  const found = async () => {
    const rows = await client.getAssociationsByResourceName(topic, 'cluster', 'topic', ['value'], null, 0, -1);
    return rows.map(row => row.subject);
  };
  const request = {
    resourceName: topic, resourceNamespace: 'cluster', resourceId: id, resourceType: 'topic',
    associations: [{ subject, associationType: 'value', lifecycle: 'WEAK' }],
  };
  await note('associate', async () => (await client.createAssociation(request)).associations[0].subject);
  await note('associations', found);
  const serializer = new registry.AvroSerializer(client, VALUE, {
    ...LATEST, subjectNameStrategyConfig: { 'subject.name.strategy.kafka.cluster.id': 'cluster' },
  });
  await note('serialize with the associated subject', async () => (await serializer.serialize(topic, { id: 1 })).length);
  await client.deleteAssociations(id, 'topic', ['value'], false);
  await note('associations after deletion', found);
}

async function deletions(task, note) {
  const client = connect(task);
  const subject = `${task.prefix}-deleted`;
  await client.register(subject, { schema: FIRST });
  await client.register(subject, { schema: SECOND });
  await note('delete permanently first', () => client.deleteSubjectVersion(subject, 1, true));
  await note('delete a version', () => client.deleteSubjectVersion(subject, 1));
  await note('deleted version', async () => (await connect(task).getSchemaMetadata(subject, 1, true)).version);
  await note('delete a version permanently', () => client.deleteSubjectVersion(subject, 1, true));
  await note('delete the subject', () => client.deleteSubject(subject));
  await note('delete the subject permanently', () => client.deleteSubject(subject, true));
}

const VALUE = registry.SerdeType.VALUE;
const SERIALIZER = { autoRegisterSchemas: true };
const LATEST = { autoRegisterSchemas: false, useLatestVersion: true };

function protobufOrder() {
  const file = fromJson(FileDescriptorProtoSchema, {
    name: 'node_order.proto', package: 'node', syntax: 'proto3',
    messageType: [{ name: 'Order', field: [{ name: 'id', number: 1, type: 'TYPE_INT32', label: 'LABEL_OPTIONAL' }] }],
  });
  return createFileRegistry(file, () => undefined).getMessage('node.Order');
}

async function encode(task) {
  const client = connect(task);
  const topic = name => `${task.prefix}-${name}`;
  await client.register(`${topic('avro')}-value`, { schema: FIRST });
  await client.register(`${topic('json')}-value`, { schema: OBJECT, schemaType: 'JSON' });
  const order = protobufOrder();
  const known = createMutableRegistry(order);
  const headers = {};
  const avro = new registry.AvroSerializer(client, VALUE, LATEST);
  const json = new registry.JsonSerializer(client, VALUE, LATEST);
  const protobuf = new registry.ProtobufSerializer(client, VALUE, { ...SERIALIZER, registry: known });
  const header = new registry.AvroSerializer(client, VALUE, {
    ...LATEST, schemaIdSerializer: registry.HeaderSchemaIdSerializer,
  });
  const data = {
    avro: await avro.serialize(topic('avro'), { id: 42 }),
    json: await json.serialize(topic('json'), { id: 42 }),
    protobuf: await protobuf.serialize(topic('protobuf'), create(order, { id: 42 })),
    'avro with a header': await header.serialize(topic('avro'), { id: 42 }, headers),
  };
  data.header = headers[registry.VALUE_SCHEMA_ID_HEADER];
  return Object.fromEntries(Object.entries(data).map(([name, bytes]) => [name, Buffer.from(bytes).toString('base64')]));
}

async function decode(task) {
  const client = connect(task);
  const deserializers = {
    avro: new registry.AvroDeserializer(client, VALUE, {}),
    json: new registry.JsonDeserializer(client, VALUE, {}),
    protobuf: new registry.ProtobufDeserializer(client, VALUE, {}),
  };
  const found = {};
  for (const [name, text] of Object.entries(task.read)) {
    if (name in deserializers) {
      found[name] = (await deserializers[name].deserialize('other', Buffer.from(text, 'base64'))).id;
    }
  }
  if (task.read.header) {
    const headers = { [registry.VALUE_SCHEMA_ID_HEADER]: Buffer.from(task.read.header, 'base64') };
    const data = Buffer.from(task.read['avro with a header'], 'base64');
    found['avro with a header'] = (await deserializers.avro.deserialize('other', data, headers)).id;
  }
  return found;
}

// Data of the first version is read with the second one.
async function evolve(task) {
  const client = connect(task);
  const topic = `${task.prefix}-evolved`;
  await client.register(`${topic}-value`, { schema: FIRST });
  const old = await new registry.AvroSerializer(client, VALUE, LATEST).serialize(topic, { id: 1 });
  const later = connect(task);
  await later.register(`${topic}-value`, { schema: SECOND });
  return new registry.AvroDeserializer(later, VALUE, { useLatestVersion: true }).deserialize(topic, old);
}

main().catch(error => {
  process.stderr.write(`${error.stack}\n`);
  process.exitCode = 1;
});
