<?php
/*
 * One scenario of a PHP client against a broker: php scenarios.php PORT SCENARIO NAME
 *
 * Prints what happened as one line of JSON and exits 0; test_php_amqplib.py judges it. An error
 * goes to standard error with exit code 1. Queues belong to the connection, exchanges go with them.
 */
declare(strict_types=1);

require '/usr/share/php/PhpAmqpLib/autoload.php';

use PhpAmqpLib\Channel\AMQPChannel;
use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPBasicCancelException;
use PhpAmqpLib\Exception\AMQPProtocolException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPAbstractCollection as Type;
use PhpAmqpLib\Wire\AMQPArray;
use PhpAmqpLib\Wire\AMQPDecimal;
use PhpAmqpLib\Wire\AMQPTable;

const WAIT_S = 20;

// A notice is an error as well; what the library uses of PHP may be on its way out.
error_reporting(E_ALL & ~E_DEPRECATED);
set_error_handler(function (int $level, string $text, string $file, int $line) {
    if (error_reporting() & $level) {
        throw new ErrorException($text, 0, $level, $file, $line);
    }
    return true;
});

function connect(): AMQPStreamConnection
{
    return new AMQPStreamConnection('127.0.0.1', PORT, 'guest', 'guest');
}

/** Name of a new queue that belongs to the channel's connection. */
function temporaryQueue(AMQPChannel $channel): string
{
    return $channel->queue_declare('', false, false, true, false)[0];
}

function publish(AMQPChannel $channel, string $queue, string ...$bodies): void
{
    foreach ($bodies as $body) {
        $channel->basic_publish(new AMQPMessage($body), '', $queue);
    }
}

function readyCount(AMQPChannel $channel, string $queue): int
{
    return $channel->queue_declare($queue, true)[1];
}

/** The first $count messages of a queue; $handle settles each. */
function consume(AMQPChannel $channel, string $queue, int $count, ?callable $handle = null): array
{
    $messages = [];
    $handle ??= fn (AMQPMessage $message) => $message->ack();
    $channel->basic_consume($queue, '', false, false, false, false,
        function (AMQPMessage $message) use (&$messages, $handle) {
            $messages[] = $message;
            $handle($message, count($messages));
        });
    while (count($messages) < $count) {
        $channel->wait(null, false, WAIT_S);
    }
    return $messages;
}

function bodies(array $messages): array
{
    return array_map(fn (AMQPMessage $message) => $message->getBody(), $messages);
}

/** The bodies of all ready messages, which are thereby gone. */
function drain(AMQPChannel $channel, string $queue): array
{
    $messages = [];
    while (($message = $channel->basic_get($queue, true)) !== null) {
        $messages[] = $message;
    }
    return bodies($messages);
}

/** The reply code that an action fails with. */
function failureCode(callable $action): ?int
{
    try {
        $action();
    } catch (AMQPProtocolException $failure) {
        return $failure->amqp_reply_code;
    }
    return null;
}

/** A field table as [type letter, value] for each name, so that types show. */
function typed(Type $collection): array
{
    $fields = [];
    foreach ($collection as $name => [$type, $value]) {
        if ($value instanceof AMQPDecimal) {
            $value = [$value->getN(), $value->getE()];
        }
        $letter = Type::getSymbolForDataType($type);
        $fields[$name] = [$letter, match (true) {
            $value instanceof Type => typed($value),
            $letter === 'x' => bin2hex($value),
            default => $value,
        }];
    }
    return $fields;
}

function order(AMQPStreamConnection $connection): array
{
    $channel = $connection->channel();
    $queue = temporaryQueue($channel);
    publish($channel, $queue, ...array_map('strval', range(0, 999)));
    $messages = consume($channel, $queue, 1000);
    $redelivered = array_filter($messages, fn ($message) => $message->isRedelivered());
    $channel->close();
    $left = readyCount($connection->channel(), $queue);
    return ['bodies' => bodies($messages), 'redelivered' => $redelivered !== [], 'left' => $left];
}

function confirms(AMQPStreamConnection $connection): array
{
    $channel = $connection->channel();
    $queue = temporaryQueue($channel);
    $confirmed = 0;
    $channel->set_ack_handler(function () use (&$confirmed) {
        $confirmed++;
    });
    $channel->confirm_select();
    publish($channel, $queue, ...array_map('strval', range(1, 500)));
    $channel->wait_for_pending_acks(WAIT_S);
    return ['confirmed' => $confirmed, 'ready' => readyCount($channel, $queue)];
}

function returned(AMQPStreamConnection $connection): array
{
    $channel = $connection->channel();
    $events = [];
    $channel->set_return_listener(
        function (int $code, string $text, string $exchange, string $key, AMQPMessage $message)
            use (&$events) {
            $id = $message->get('message_id');
            $body = $message->getBody();
            $events[] = compact('code', 'text', 'exchange', 'key', 'id', 'body');
        });
    $channel->set_ack_handler(function () use (&$events) {
        $events[] = 'confirmed';
    });
    $channel->confirm_select();
    $message = new AMQPMessage('back', ['message_id' => 'm1']);
    $channel->basic_publish($message, 'amq.direct', 'no such key', true);
    $channel->wait_for_pending_acks_returns(WAIT_S);
    return ['events' => $events];
}

function prefetch(AMQPStreamConnection $connection): array
{
    $channel = $connection->channel();
    $queue = temporaryQueue($channel);
    publish($channel, $queue, ...array_map('strval', range(1, 10)));
    $channel->basic_qos(0, 3, false);
    $messages = [];
    $channel->basic_consume($queue, '', false, false, false, false,
        function (AMQPMessage $message) use (&$messages) {
            $messages[] = $message;
        });
    $held = $ready = [];
    foreach ([3, 5] as $count) {
        while (count($messages) < $count) {
            $channel->wait(null, false, WAIT_S);
        }
        $ready[] = readyCount($channel, $queue);
        $held[] = count($messages);
        $channel->basic_ack($messages[$count - 2]->getDeliveryTag(), true);
    }
    return ['held' => $held, 'ready' => $ready];
}

function requeue(AMQPStreamConnection $connection): array
{
    $channel = $connection->channel();
    $queue = temporaryQueue($channel);
    $channel->basic_qos(0, 1, false);
    publish($channel, $queue, 'acked', 'again', 'dropped');
    $messages = consume($channel, $queue, 4, fn (AMQPMessage $message, int $count) => match (true) {
        $message->getBody() === 'dropped' => $message->reject(false),
        $count === 2 => $message->nack(true),
        default => $message->ack(),
    });
    $seen = array_map(fn ($message) => [$message->getBody(), $message->isRedelivered()], $messages);
    return ['seen' => $seen, 'left' => $channel->queue_purge($queue)];
}

function get(AMQPStreamConnection $connection): array
{
    $channel = $connection->channel();
    $queue = temporaryQueue($channel);
    $empty = $channel->basic_get($queue) === null;
    publish($channel, $queue, '1', '2');
    $got = [];
    foreach (range(1, 2) as $_) {
        $message = $channel->basic_get($queue);
        $got[] = [$message->getBody(), $message->isRedelivered(), $message->getMessageCount()];
        $message->nack(true);
    }
    return ['empty' => $empty, 'got' => $got];
}

function routing(AMQPStreamConnection $connection, string $name): array
{
    $channel = $connection->channel();
    foreach (['direct', 'topic', 'headers'] as $type) {
        $channel->exchange_declare("$name-$type", $type);
        $queues[$type] = temporaryQueue($channel);
    }
    $send = fn (string $type, string $key, string $body, array $headers = []) =>
        $channel->basic_publish(
            new AMQPMessage($body, ['application_headers' => new AMQPTable($headers)]),
            "$name-$type", $key);

    $queues['through'] = temporaryQueue($channel);
    $channel->exchange_bind("$name-direct", "$name-topic", 'far.*');
    $channel->queue_bind($queues['through'], "$name-direct", 'far.away');
    $send('topic', 'far.away', 'far');
    $send('topic', 'far.off', 'off');

    $channel->queue_bind($queues['direct'], "$name-direct", 'key');
    $send('direct', 'key', 'hit');
    $send('direct', 'other', 'missed');
    $channel->queue_unbind($queues['direct'], "$name-direct", 'key');
    $send('direct', 'key', 'unbound');

    $channel->queue_bind($queues['topic'], "$name-topic", 'a.#');
    $channel->queue_bind($queues['topic'], "$name-topic", '*.b');
    foreach (['a.b.c', 'x.b', 'x.c', 'b'] as $key) {
        $send('topic', $key, $key);
    }

    $wanted = ['n' => 7, 'on' => true, 'nested' => ['list' => [1, 'two', ['x' => null]]]];
    $match = new AMQPTable(['x-match' => 'all'] + $wanted);
    $channel->queue_bind($queues['headers'], "$name-headers", '', false, $match);
    $send('headers', '', 'same', $wanted + ['more' => 1]);
    $send('headers', '', 'deep', ['nested' => ['list' => [1, 'two', ['x' => false]]]] + $wanted);
    $send('headers', '', 'part', ['n' => 7, 'on' => true]);
    return array_map(fn (string $queue) => drain($channel, $queue), $queues);
}

function failure(AMQPStreamConnection $connection, string $name): array
{
    $healthy = $connection->channel();
    $queue = temporaryQueue($healthy);
    $actions = [
        fn (AMQPChannel $channel) => $channel->queue_declare($name, true),
        fn (AMQPChannel $channel) => $channel->exchange_declare($name, '', true),
        fn (AMQPChannel $channel) => $channel->queue_declare($queue, false, true, true, false),
    ];
    $codes = [];
    foreach ($actions as $action) {
        $channel = $connection->channel();
        $codes[] = failureCode(fn () => $action($channel));
    }
    publish($healthy, $queue, 'fine');
    return ['codes' => $codes, 'bodies' => bodies(consume($healthy, $queue, 1))];
}

function large(AMQPStreamConnection $connection): array
{
    $channel = $connection->channel();
    $queue = temporaryQueue($channel);
    $sent = array_map(
        fn (int $size) => $size ? random_bytes($size) : '', [0, 131064, 131065, 1048576]);
    publish($channel, $queue, ...$sent);
    $received = bodies(consume($channel, $queue, count($sent)));
    return [
        'lengths' => array_map('strlen', $received),
        'same' => array_map(fn ($one, $other) => $one === $other, $sent, $received),
    ];
}

function headers(AMQPStreamConnection $connection): array
{
    $channel = $connection->channel();
    $queue = temporaryQueue($channel);
    $headers = new AMQPTable();
    $set = fn (string $letter, $value) =>
        $headers->set($letter, $value, Type::getDataTypeForSymbol($letter));
    $set('b', -128);
    $set('B', 255);
    $set('s', -32768);
    $set('u', 65535);
    $set('I', -2147483648);
    $set('i', 4294967295);
    $set('l', PHP_INT_MIN);
    $set('D', new AMQPDecimal(-12345, 2));
    $set('T', 1700000000);
    $set('V', null);
    $set('t', true);
    $set('S', 'ünïcode');
    $set('x', "\x00\xff");
    $headers->set('A', new AMQPArray([1, 'two', ['three' => 3], [false]]));
    $headers->set('F', new AMQPTable(['a' => ['b' => null]]));
    $properties = [
        'content_type' => 'application/json', 'content_encoding' => 'utf-8', 'delivery_mode' => 2,
        'priority' => 5, 'correlation_id' => 'c1', 'reply_to' => 'r1', 'expiration' => '60000',
        'message_id' => 'm1', 'timestamp' => 1700000000, 'type' => 't1', 'user_id' => 'guest',
        'app_id' => 'a1', 'cluster_id' => 'k1',
    ];
    $message = new AMQPMessage('{}', ['application_headers' => $headers] + $properties);
    $channel->basic_publish($message, '', $queue);
    $received = consume($channel, $queue, 1)[0]->get_properties();
    $table = $received['application_headers'];
    unset($received['application_headers']);
    return ['headers' => typed($table), 'properties' => $received];
}

function transaction(AMQPStreamConnection $connection): array
{
    $watcher = $connection->channel();
    $queue = temporaryQueue($watcher);
    $channel = $connection->channel();
    $channel->tx_select();
    publish($channel, $queue, '1', '2');
    $ready = [readyCount($watcher, $queue)];
    $channel->tx_commit();
    $ready[] = readyCount($watcher, $queue);
    publish($channel, $queue, '3', '4');
    $channel->tx_rollback();
    $channel->tx_commit();
    $ready[] = readyCount($watcher, $queue);
    $channel->basic_get($queue)->ack();
    $channel->basic_get($queue)->ack();
    $channel->tx_rollback();
    $channel->tx_commit();
    $channel->close();
    $messages = consume($watcher, $queue, 2);
    $again = array_map(fn ($message) => [$message->getBody(), $message->isRedelivered()], $messages);
    return ['ready' => $ready, 'again' => $again];
}

function cancelled(AMQPStreamConnection $connection): array
{
    $channel = $connection->channel();
    $queue = temporaryQueue($channel);
    $tag = $channel->basic_consume($queue);
    $connection->channel()->queue_delete($queue);
    $cancelled = null;
    try {
        $channel->wait(null, false, WAIT_S);
    } catch (AMQPBasicCancelException $cancel) {
        $cancelled = $cancel->getConsumerTag();
    }
    $next = temporaryQueue($channel);
    publish($channel, $next, 'after');
    return ['cancelled' => $cancelled === $tag, 'bodies' => bodies(consume($channel, $next, 1))];
}

function rpc(AMQPStreamConnection $connection): array
{
    $server = $connection->channel();
    $queue = temporaryQueue($server);
    $client = $connection->channel();
    $reply = null;
    $client->basic_consume('amq.rabbitmq.reply-to', '', false, true, false, false,
        function (AMQPMessage $message) use (&$reply) {
            $reply = $message;
        });
    $properties = ['reply_to' => 'amq.rabbitmq.reply-to', 'correlation_id' => 'c1'];
    $client->basic_publish(new AMQPMessage('question', $properties), '', $queue);
    consume($server, $queue, 1, function (AMQPMessage $request) use ($server) {
        $properties = ['correlation_id' => $request->get('correlation_id')];
        $answer = new AMQPMessage($request->getBody() . ' answered', $properties);
        $server->basic_publish($answer, '', $request->get('reply_to'));
        $request->ack();
    });
    while ($reply === null) {
        $client->wait(null, false, WAIT_S);
    }
    return ['body' => $reply->getBody(), 'id' => $reply->get('correlation_id')];
}

function exclusive(AMQPStreamConnection $connection, string $name): array
{
    $owner = connect();
    $queue = temporaryQueue($owner->channel());
    $look = fn () => failureCode(fn () => readyCount($connection->channel(), $queue));
    $codes = [$look()];
    $owner->close();
    $codes[] = $look();
    return ['codes' => $codes];
}

function close(AMQPStreamConnection $connection, string $name): array
{
    $channel = $connection->channel();
    $channel->queue_declare($name, false, true, false, false);
    publish($channel, $name, 'kept');
    readyCount($channel, $name);  // what another connection does comes after the answer
    $got = [];
    foreach (range(1, 2) as $_) {
        $other = connect();
        $message = $other->channel()->basic_get($name);
        $got[] = [$message->getBody(), $message->isRedelivered()];
        $other->close();
    }
    $channel->queue_delete($name);
    return ['got' => $got];
}

define('PORT', (int) $argv[1]);
try {
    $connection = connect();
    $outcome = $argv[2]($connection, $argv[3]);
    $connection->close();
    echo json_encode($outcome, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE), "\n";
} catch (Throwable $error) {
    fwrite(STDERR, "$error\n");
    exit(1);
}
