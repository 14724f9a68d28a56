/*
 * A Node client that outlives a broker restart: node reconnect.js PORT
 *
 * Prints one JSON line per event; test_node_amqplib.py restarts the broker after "ready". The
 * client publishes once more after it is back, and ends when the messages from before the restart
 * and the one from after it have arrived.
 */
'use strict';

const amqplib = require('amqplib');

const QUEUE = 'node-reconnect';
const STORED_QUEUE = 'node-stored';
const STORED_COUNT = 50;

const tell = (event, details = {}) => console.log(JSON.stringify({ event, ...details }));

async function collect(channel, queue, count) {
  const found = [];
  for (let index = 0; index < count; index += 1) {
    const message = await channel.get(queue, { noAck: true });
    if (message !== false) found.push(message.content.toString());
  }
  return found;
}

async function main(port) {
  const uri = `amqp://guest:guest@127.0.0.1:${port}`;
  let connectionCount = 0;
  const connection = await amqplib.connect(uri, {
    recovery: {
      initialDelay: 50,
      maxDelay: 200,
      async setup(model) {
        connectionCount += 1;
        const channel = await model.createConfirmChannel();
        await channel.assertQueue(QUEUE, { durable: true });
        await channel.assertQueue(STORED_QUEUE, { durable: true });
        if (connectionCount === 1) {
          for (let number = 0; number < STORED_COUNT; number += 1) {
            channel.sendToQueue(STORED_QUEUE, Buffer.from(`${number}`), { persistent: true });
          }
          await channel.waitForConfirms();
          tell('ready');
          return;
        }
        tell('stored', { bodies: await collect(channel, STORED_QUEUE, STORED_COUNT + 1) });
        await channel.consume(QUEUE, (message) => {
          channel.ack(message);
          tell('received', { body: message.content.toString() });
          connection.close().catch(fail);
        });
        channel.sendToQueue(QUEUE, Buffer.from('after'), { persistent: true });
      },
    },
  });
  connection.on('disconnect', () => tell('disconnected'));
  connection.on('error', (error) => console.error(error.message));
}

function fail(error) {
  console.error(error);
  process.exit(1);
}

main(...process.argv.slice(2)).catch(fail);
