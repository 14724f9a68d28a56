/*
 * A strict client: node heartbeats.js PORT COUNT SECONDS
 *
 * Opens connections with a heartbeat of one second and does nothing with them. The library gives a
 * connection up when nothing has come for one interval. Prints how many were lost.
 */
'use strict';

const { AMQPClient } = require('@cloudamqp/amqp-client');

async function main() {
  const [port, count, seconds] = process.argv.slice(2).map(Number);
  let lost = 0;
  const clients = [];
  for (let i = 0; i < count; i++) {
    const client = new AMQPClient(`amqp://guest:guest@127.0.0.1:${port}?heartbeat=1`);
    client.logger = null;
    client.onerror = () => { lost += 1; };
    await client.connect();
    clients.push(client);
  }
  await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
  const open = clients.filter((client) => !client.closed);
  await Promise.all(open.map((client) => client.close()));
  console.log(JSON.stringify({ open: open.length, lost }));
}

main().catch((error) => { console.error(error); process.exit(1); });
