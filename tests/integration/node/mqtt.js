"use strict";

// mqtt.js against a broker of MQTT: each QoS, a retained message, a will, a session that goes on.
// Usage: node mqtt.js URL VERSION NAME, the version 3, 4 or 5, a name that no other test uses.
// Prints one line of JSON; an error goes to standard error with exit code 1.

const mqtt = require("mqtt");

const [url, level, name] = process.argv.slice(2);
const version = Number(level);
const topic = `js/${name}`;

/** A client and what comes to it: [topic, body, QoS, retain]. */
class Peer {
  constructor(suffix, more = {}) {
    this.messages = [];
    this.wake = () => {};
    this.client = mqtt.connect(url, {
      clientId: name + suffix, protocolVersion: version,
      protocolId: version === 3 ? "MQIsdp" : "MQTT",
      username: "guest", password: "guest", reconnectPeriod: 0, ...more,
    });
    this.client.on("message", (where, body, packet) => {
      this.messages.push([where.slice(topic.length + 1), `${body}`, packet.qos, packet.retain]);
      this.wake();
    });
  }

  /** Whether the session was there. */
  connected() {
    return new Promise((resolve, reject) => {
      this.client.once("connect", (packet) => resolve(packet.sessionPresent));
      this.client.once("error", reject);
    });
  }

  /** So many messages, sorted. */
  async heard(count) {
    while (this.messages.length < count) {
      await new Promise((resolve) => { this.wake = resolve; });
    }
    return this.messages.splice(0, count).sort();
  }
}

const kept = { clean: false };
if (version === 5) {
  kept.properties = { sessionExpiryInterval: 100 };
}

async function main() {
  const outcome = {};
  const reader = new Peer("r", kept);
  await reader.connected();
  const granted = await reader.client.subscribeAsync(`${topic}/#`, { qos: 2 });
  outcome.granted = granted.map((each) => each.qos);
  const will = { topic: `${topic}/will`, payload: "gone", qos: 1, retain: false };
  const author = new Peer("a", { will });
  await author.connected();
  for (const qos of [0, 1, 2]) {
    await author.client.publishAsync(`${topic}/${qos}`, `body ${qos}`, { qos });
  }
  await author.client.publishAsync(`${topic}/kept`, "kept", { qos: 1, retain: true });
  outcome.live = await reader.heard(4);
  author.client.stream.destroy();
  outcome.will = await reader.heard(1);

  await reader.client.endAsync();
  const sender = new Peer("s");
  await sender.connected();
  for (const qos of [0, 1, 2]) {
    await sender.client.publishAsync(`${topic}/late`, `late ${qos}`, { qos });
  }
  const again = new Peer("r", kept);
  outcome.present = await again.connected();
  outcome.late = await again.heard(2);

  await sender.client.subscribeAsync(`${topic}/kept`, { qos: 1 });
  outcome.kept = await sender.heard(1);
  await sender.client.publishAsync(`${topic}/kept`, "", { qos: 1, retain: true });
  await Promise.all([again.client.endAsync(), sender.client.endAsync()]);
  process.stdout.write(`${JSON.stringify(outcome)}\n`);
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
