# frozen_string_literal: true

# One scenario of a Ruby client against a broker: ruby scenarios.rb PORT SCENARIO NAME
#
# Prints what happened as one line of JSON and exits 0; test_ruby_bunny.py judges it. An error goes
# to standard error with exit code 1. Queues belong to the connection, exchanges go with them.

require 'bigdecimal'
require 'json'
require 'securerandom'
require 'timeout'
require 'bunny'

PORT = Integer(ARGV[0])
WAIT_S = 20
REPLY_ADDRESS = 'amq.rabbitmq.reply-to'

# A message as the client got it; `left` is what basic.get says about the queue.
Message = Struct.new(:body, :tag, :redelivered, :properties, :left) do
  def seen = [body, redelivered]
end

def connect
  uri = "amqp://guest:guest@127.0.0.1:#{PORT}"
  Bunny.new(uri, automatically_recover: false, log_file: $stderr).start
end

# Name of a new queue that belongs to the channel's connection.
def temporary_queue(channel) = channel.queue_declare('', exclusive: true).queue

def publish(channel, queue, *bodies)
  bodies.each { |body| channel.basic_publish(body, '', queue) }
end

def ready_count(channel, queue) = channel.queue_declare(queue, passive: true).message_count

# Takes the next thing out of a queue of the language; raises when there is none in time.
def take(arrived) = Timeout.timeout(WAIT_S) { arrived.pop }

# A queue of the language with the messages that arrive for a consumer.
def start_consumer(channel, queue, no_ack: false)
  arrived = Thread::Queue.new
  channel.basic_consume(queue, channel.generate_consumer_tag, no_ack) do |info, properties, body|
    arrived << Message.new(body, info.delivery_tag, info.redelivered?, properties)
  end
  arrived
end

# The first `count` messages of a queue; the block settles each.
def consume(channel, queue, count)
  arrived = start_consumer(channel, queue)
  (1..count).map do |number|
    message = take(arrived)
    block_given? ? yield(message, number) : channel.ack(message.tag)
    message
  end
end

# The next message, or nil when there is none.
def get(channel, queue, manual_ack: true)
  info, properties, body = channel.basic_get(queue, manual_ack: manual_ack)
  return unless body

  Message.new(body, info.delivery_tag, info.redelivered, properties, info.message_count)
end

# The bodies of all ready messages, which are thereby gone.
def drain(channel, queue)
  bodies = []
  while (message = get(channel, queue, manual_ack: false))
    bodies << message.body
  end
  bodies
end

# The reply code that the block fails with.
def failure_code
  yield
  nil
rescue Bunny::ChannelLevelException => e
  e.channel_close.reply_code
end

# A field as [class, value], so that types show.
def typed(value)
  shown = case value
          when Hash then value.transform_values { |item| typed(item) }
          when Array then value.map { |item| typed(item) }
          when String then value.dup.force_encoding('UTF-8')
          when Time, BigDecimal then value.to_i
          else value
          end
  [value.class.name, shown]
end

SCENARIOS = {
  order: lambda do |connection|
    channel = connection.create_channel
    queue = temporary_queue(channel)
    publish(channel, queue, *(0..999).map(&:to_s))
    messages = consume(channel, queue, 1000)
    channel.close
    { bodies: messages.map(&:body), redelivered: messages.any?(&:redelivered),
      left: ready_count(connection.create_channel, queue) }
  end,

  confirms: lambda do |connection|
    channel = connection.create_channel
    queue = temporary_queue(channel)
    confirmed = 0
    channel.confirm_select(lambda do |tag, multiple, nack|
      confirmed = multiple ? tag : confirmed + 1 unless nack
    end)
    publish(channel, queue, *(1..500).map(&:to_s))
    raise 'something was not confirmed' unless channel.wait_for_confirms

    { confirmed: confirmed, ready: ready_count(channel, queue) }
  end,

  returned: lambda do |connection|
    channel = connection.create_channel
    events = Thread::Queue.new
    channel.confirm_select(->(_tag, _multiple, nack) { events << (nack ? 'nacked' : 'confirmed') })
    exchange = channel.direct('amq.direct')
    exchange.on_return do |info, properties, body|
      events << { code: info.reply_code, text: info.reply_text, exchange: info.exchange,
                  key: info.routing_key, id: properties.message_id, body: body }
    end
    exchange.publish('back', routing_key: 'no such key', mandatory: true, message_id: 'm1')
    { events: [take(events), take(events)] }
  end,

  prefetch: lambda do |connection|
    channel = connection.create_channel
    queue = temporary_queue(channel)
    publish(channel, queue, *(1..10).map(&:to_s))
    channel.basic_qos(3)
    arrived = start_consumer(channel, queue)
    messages = []
    held = []
    ready = [3, 5].map do |count|
      messages << take(arrived) while messages.size < count
      left = ready_count(channel, queue)
      held << messages.size + arrived.size
      channel.ack(messages[count - 2].tag, true)
      left
    end
    { held: held, ready: ready }
  end,

  requeue: lambda do |connection|
    channel = connection.create_channel
    queue = temporary_queue(channel)
    channel.basic_qos(1)
    publish(channel, queue, 'acked', 'again', 'dropped')
    messages = consume(channel, queue, 4) do |message, number|
      if message.body == 'dropped' then channel.reject(message.tag)
      elsif number == 2 then channel.nack(message.tag, false, true)
      else channel.ack(message.tag)
      end
    end
    { seen: messages.map(&:seen), left: channel.queue_purge(queue).message_count }
  end,

  get: lambda do |connection|
    channel = connection.create_channel
    queue = temporary_queue(channel)
    empty = get(channel, queue).nil?
    publish(channel, queue, '1', '2')
    got = (1..2).map do
      message = get(channel, queue)
      channel.nack(message.tag, false, true)
      [*message.seen, message.left]
    end
    { empty: empty, got: got }
  end,

  routing: lambda do |connection, name|
    channel = connection.create_channel
    queues = { through: temporary_queue(channel) }
    exchanges = %i[direct topic headers].to_h do |type|
      queues[type] = temporary_queue(channel)
      [type, channel.exchange("#{name}-#{type}", type: type, auto_delete: true)]
    end
    bind = lambda do |queue, type, key, arguments = nil|
      channel.queue_bind(queues[queue], exchanges[type], routing_key: key, arguments: arguments)
    end
    send = lambda do |type, key, body, headers = {}|
      exchanges[type].publish(body, routing_key: key, headers: headers)
    end

    exchanges[:direct].bind(exchanges[:topic], routing_key: 'far.*')
    bind.call(:through, :direct, 'far.away')
    send.call(:topic, 'far.away', 'far')
    send.call(:topic, 'far.off', 'off')

    bind.call(:direct, :direct, 'key')
    send.call(:direct, 'key', 'hit')
    send.call(:direct, 'other', 'missed')
    channel.queue_unbind(queues[:direct], exchanges[:direct], routing_key: 'key')
    send.call(:direct, 'key', 'unbound')

    bind.call(:topic, :topic, 'a.#')
    bind.call(:topic, :topic, '*.b')
    %w[a.b.c x.b x.c b].each { |key| send.call(:topic, key, key) }

    wanted = lambda do |deepest|
      { 'n' => 7, 'f' => 1.5, 'on' => true, 'when' => Time.at(1_700_000_000),
        'nested' => { 'list' => [1, 'two', { 'x' => deepest }] } }
    end
    bind.call(:headers, :headers, '', { 'x-match' => 'all' }.merge(wanted.call(nil)))
    send.call(:headers, '', 'same', { 'more' => 1 }.merge(wanted.call(nil)))
    send.call(:headers, '', 'deep', wanted.call(false))
    send.call(:headers, '', 'part', { 'n' => 7, 'on' => true })
    queues.transform_values { |queue| drain(channel, queue) }
  end,

  failure: lambda do |connection, name|
    healthy = connection.create_channel
    queue = temporary_queue(healthy)
    actions = [
      ->(channel) { channel.queue_declare(name, passive: true) },
      ->(channel) { channel.exchange_declare(name, 'direct', passive: true) },
      ->(channel) { channel.queue_declare(queue, exclusive: true, durable: true) }
    ]
    codes = actions.map do |action|
      channel = connection.create_channel
      failure_code { action.call(channel) }
    end
    publish(healthy, queue, 'fine')
    { codes: codes, bodies: consume(healthy, queue, 1).map(&:body) }
  end,

  large: lambda do |connection|
    channel = connection.create_channel
    queue = temporary_queue(channel)
    sent = [0, 131_064, 131_065, 1_048_576].map { |size| SecureRandom.bytes(size) }
    publish(channel, queue, *sent)
    received = consume(channel, queue, sent.size).map(&:body)
    { lengths: received.map(&:bytesize), same: sent.zip(received).map { |one, other| one == other } }
  end,

  headers: lambda do |connection|
    channel = connection.create_channel
    queue = temporary_queue(channel)
    headers = {
      'integer' => -2**63, 'float' => Math::PI, 'true' => true, 'false' => false, 'nothing' => nil,
      'single' => AMQ::Protocol::Float32Bit.new(1.5), 'string' => 'ünïcode',
      'time' => Time.at(1_700_000_000), 'decimal' => BigDecimal(12_345),
      'array' => [nil, false, 1, { 'three' => 3 }, ['two']], 'table' => { 'inner' => { 'none' => nil } }
    }
    properties = {
      content_type: 'application/json', content_encoding: 'utf-8', persistent: true, priority: 5,
      correlation_id: 'c1', reply_to: 'r1', expiration: '60000', message_id: 'm1',
      timestamp: 1_700_000_000, type: 't1', user_id: 'guest', app_id: 'a1'
    }
    channel.basic_publish('{}', '', queue, headers: headers, **properties)
    received = consume(channel, queue, 1).first.properties.to_h
    received[:timestamp] = received[:timestamp].to_i
    table = received.delete(:headers)
    { headers: table.transform_values { |value| typed(value) }, properties: received }
  end,

  transaction: lambda do |connection|
    watcher = connection.create_channel
    queue = temporary_queue(watcher)
    channel = connection.create_channel
    channel.tx_select
    publish(channel, queue, '1', '2')
    ready = [ready_count(watcher, queue)]
    channel.tx_commit
    ready << ready_count(watcher, queue)
    publish(channel, queue, '3', '4')
    channel.tx_rollback
    channel.tx_commit
    ready << ready_count(watcher, queue)
    2.times { channel.ack(get(channel, queue).tag) }
    channel.tx_rollback
    channel.tx_commit
    channel.close
    { ready: ready, again: consume(watcher, queue, 2).map(&:seen) }
  end,

  cancelled: lambda do |connection|
    channel = connection.create_channel
    queue = temporary_queue(channel)
    notices = Thread::Queue.new
    consumer = Bunny::Consumer.new(channel, queue, 'mine')
    consumer.on_cancellation { |cancel| notices << cancel.consumer_tag }
    channel.basic_consume_with(consumer)
    connection.create_channel.queue_delete(queue)
    cancelled = take(notices) == 'mine'
    following = temporary_queue(channel)
    publish(channel, following, 'after')
    { cancelled: cancelled, bodies: consume(channel, following, 1).map(&:body) }
  end,

  rpc: lambda do |connection|
    server = connection.create_channel
    queue = temporary_queue(server)
    client = connection.create_channel
    replies = start_consumer(client, REPLY_ADDRESS, no_ack: true)
    client.basic_publish('question', '', queue, reply_to: REPLY_ADDRESS, correlation_id: 'c1')
    consume(server, queue, 1) do |request|
      asked = request.properties
      answer = "#{request.body} answered"
      server.basic_publish(answer, '', asked.reply_to, correlation_id: asked.correlation_id)
      server.ack(request.tag)
    end
    reply = take(replies)
    { body: reply.body, id: reply.properties.correlation_id }
  end,

  exclusive: lambda do |connection|
    owner = connect
    queue = temporary_queue(owner.create_channel)
    look = -> { failure_code { ready_count(connection.create_channel, queue) } }
    codes = [look.call]
    owner.close
    { codes: codes << look.call }
  end,

  close: lambda do |connection, name|
    channel = connection.create_channel
    channel.queue_declare(name, durable: true)
    publish(channel, name, 'kept')
    ready_count(channel, name) # what another connection does comes after the answer
    got = (1..2).map do
      other = connect
      message = get(other.create_channel, name)
      other.close
      message.seen
    end
    channel.queue_delete(name)
    { got: got }
  end
}.freeze

connection = connect
scenario = SCENARIOS.fetch(ARGV[1].to_sym)
outcome = scenario.call(connection, *ARGV[2, scenario.arity - 1])
connection.close
puts JSON.generate(outcome)
