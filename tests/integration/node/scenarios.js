/*
 * One scenario of a Node client against a broker: node scenarios.js PORT SCENARIO
 *
 * Prints what happened as one line of JSON and exits 0; test_node_amqplib.py judges it. An error
 * goes to standard error with exit code 1. A scenario uses queues of its own that go with its
 * connection.
 */
'use strict';

const crypto = require('node:crypto');
const amqplib = require('amqplib');

const sha256 = (data) => crypto.createHash('sha256').update(data).digest('hex');
const range = (count) => Array.from({ length: count }, (_, index) => index);

/** Name of a new queue that belongs to the channel's connection. */
async function temporaryQueue(channel, options = {}) {
  return (await channel.assertQueue('', { exclusive: true, ...options })).queue;
}

/** Resolves with the first `count` messages of a queue; `handle` settles each. */
function consume(channel, queue, count, handle = (message) => channel.ack(message)) {
  return new Promise((resolve, reject) => {
    const messages = [];
    const onMessage = (message) => {
      if (message === null) return reject(new Error('the consumer was cancelled'));
      messages.push(message);
      handle(message, messages.length);
      if (messages.length === count) resolve(messages);
    };
    channel.consume(queue, onMessage).catch(reject);
  });
}

const bodies = (messages) => messages.map((message) => message.content.toString());

const scenarios = {
  async publishAndConsume(connection) {
    const channel = await connection.createChannel();
    const queue = await temporaryQueue(channel);
    for (const number of range(1000)) channel.sendToQueue(queue, Buffer.from(`${number}`));
    const messages = await consume(channel, queue, 1000);
    return { bodies: bodies(messages), redelivered: messages.some((m) => m.fields.redelivered) };
  },

  async confirms(connection) {
    const channel = await connection.createConfirmChannel();
    const queue = await temporaryQueue(channel);
    const outcomes = [];
    for (const number of range(500)) {
      channel.sendToQueue(queue, Buffer.from(`${number}`), {}, (error) => outcomes.push(error));
    }
    await channel.waitForConfirms();
    const { messageCount } = await channel.checkQueue(queue);
    return { confirmed: outcomes.filter((error) => error === null).length, messageCount };
  },

  async nackedPublish(connection) {
    const channel = await connection.createConfirmChannel();
    const queue = await temporaryQueue(channel, {
      arguments: { 'x-max-length': 1, 'x-overflow': 'reject-publish' },
    });
    const publish = (body) =>
      new Promise((resolve) => {
        channel.sendToQueue(queue, Buffer.from(body), {}, (error) => resolve(error === null));
      });
    return { first: await publish('fits'), second: await publish('full') };
  },

  async returned(connection) {
    const channel = await connection.createConfirmChannel();
    const events = [];
    channel.on('return', (message) => {
      const { replyCode, replyText, exchange, routingKey } = message.fields;
      const { messageId } = message.properties;
      const body = message.content.toString();
      events.push({ replyCode, replyText, exchange, routingKey, messageId, body });
    });
    const options = { mandatory: true, messageId: 'm1' };
    channel.publish('amq.direct', 'no such key', Buffer.from('back'), options, () =>
      events.push('confirmed'),
    );
    await channel.waitForConfirms();
    return { events };
  },

  async headers(connection) {
    const channel = await connection.createChannel();
    const queue = await temporaryQueue(channel);
    const headers = {
      text: 'ünïcode',
      whole: 42,
      negative: -7,
      large: 2 ** 40,
      fraction: 1.5,
      yes: true,
      nothing: null,
      list: [1, 'two', { three: 3 }],
      nested: { a: { b: 'c' } },
      bytes: Buffer.from([0, 255]),
    };
    channel.sendToQueue(queue, Buffer.from('{}'), {
      headers,
      contentType: 'application/json',
      contentEncoding: 'utf-8',
      persistent: true,
      priority: 5,
      correlationId: 'c1',
      replyTo: 'r1',
      expiration: '60000',
      messageId: 'm1',
      timestamp: 1700000000,
      type: 't1',
      appId: 'a1',
    });
    const [message] = await consume(channel, queue, 1);
    const { headers: received, ...properties } = message.properties;
    received.bytes = [...received.bytes];
    return { headers: received, properties };
  },

  async headersExchange(connection, unique) {
    const channel = await connection.createChannel();
    await channel.assertExchange(unique, 'headers', { autoDelete: true, durable: false });
    const all = await temporaryQueue(channel);
    const any = await temporaryQueue(channel);
    await channel.bindQueue(all, unique, '', { 'x-match': 'all', a: 1, b: 'two' });
    await channel.bindQueue(any, unique, '', { 'x-match': 'any', a: 1, b: 'two' });
    const publish = (body, headers) => channel.publish(unique, '', Buffer.from(body), { headers });
    publish('both', { a: 1, b: 'two', c: 3 });
    publish('one', { a: 1 });
    publish('none', { c: 3 });
    publish('end', { a: 1, b: 'two' });
    return {
      all: bodies(await consume(channel, all, 2)),
      any: bodies(await consume(channel, any, 3)),
    };
  },

  async ackAndNack(connection) {
    const channel = await connection.createChannel();
    const queue = await temporaryQueue(channel);
    await channel.prefetch(1);
    for (const body of ['acked', 'again', 'dropped']) channel.sendToQueue(queue, Buffer.from(body));
    const messages = await consume(channel, queue, 4, (message, count) => {
      const body = message.content.toString();
      if (body === 'dropped') channel.nack(message, false, false);
      else if (body === 'again' && count === 2) channel.nack(message, false, true);
      else channel.ack(message);
    });
    const seen = messages.map((m) => [m.content.toString(), m.fields.redelivered]);
    return { seen, left: (await channel.purgeQueue(queue)).messageCount };
  },

  async get(connection) {
    const channel = await connection.createConfirmChannel();
    const queue = await temporaryQueue(channel);
    const empty = await channel.get(queue);
    for (const body of ['1', '2']) channel.sendToQueue(queue, Buffer.from(body));
    await channel.waitForConfirms();
    const message = await channel.get(queue, { noAck: true });
    return { empty, body: message.content.toString(), left: message.fields.messageCount };
  },

  async largeMessage(connection) {
    const channel = await connection.createConfirmChannel();
    const queue = await temporaryQueue(channel);
    const body = crypto.randomBytes(8 * 1024 * 1024 + 1);
    channel.sendToQueue(queue, body);
    channel.sendToQueue(queue, Buffer.alloc(0));
    await channel.waitForConfirms();
    const [large, empty] = await consume(channel, queue, 2);
    return { same: sha256(large.content) === sha256(body), lengths: [large, empty].map((m) => m.content.length) };
  },

  async channelError(connection) {
    const healthy = await connection.createChannel();
    const queue = await temporaryQueue(healthy);
    const mistaken = await connection.createChannel();
    const events = [];
    mistaken.on('error', (error) => events.push(['error', error.code]));
    mistaken.on('close', () => events.push(['close']));
    const failure = await mistaken.checkQueue(`${queue}-missing`).then(
      () => null,
      (error) => error.code,
    );
    healthy.sendToQueue(queue, Buffer.from('fine'));
    return { failure, events, bodies: bodies(await consume(healthy, queue, 1)) };
  },

  async directReplyTo(connection) {
    const server = await connection.createChannel();
    const queue = await temporaryQueue(server);
    await server.consume(queue, (message) => {
      const { replyTo, correlationId } = message.properties;
      const answer = Buffer.from(`${message.content} answered`);
      server.sendToQueue(replyTo, answer, { correlationId });
      server.ack(message);
    });
    const client = await connection.createChannel();
    const replyQueue = 'amq.rabbitmq.reply-to';
    const answered = new Promise((resolve, reject) => {
      client.consume(replyQueue, resolve, { noAck: true }).catch(reject);
    });
    const options = { replyTo: replyQueue, correlationId: 'c1' };
    client.sendToQueue(queue, Buffer.from('question'), options);
    const reply = await answered;
    return { body: reply.content.toString(), correlationId: reply.properties.correlationId };
  },
};

async function main(port, name, unique) {
  const scenario = scenarios[name];
  if (!scenario) throw new Error(`no scenario is called ${name}`);
  const connection = await amqplib.connect(`amqp://guest:guest@127.0.0.1:${port}`);
  const outcome = await scenario(connection, unique);
  await connection.close();
  console.log(JSON.stringify(outcome));
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
