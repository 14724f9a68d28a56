/*
 * One scenario of a Java client against a broker: java Scenarios PORT SCENARIO NAME
 *
 * Prints what happened as one line of JSON and exits 0; test_java_client.py judges it. An error
 * goes to standard error with exit code 1. Queues belong to the connection, exchanges go with them.
 */

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AMQP.BasicProperties;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.LongString;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Collections;
import java.util.Date;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

public final class Scenarios {
    static final long WAIT_S = 20;
    static final String REPLY_ADDRESS = "amq.rabbitmq.reply-to";
    static int port;

    interface Scenario {
        Object play(Connection connection, String name) throws Exception;
    }

    interface Action {
        void on(Channel channel) throws IOException;
    }

    interface Settle {
        void message(Delivery message, int count) throws IOException;
    }

    static final Map<String, Scenario> SCENARIOS = Map.ofEntries(
        Map.entry("order", Scenarios::order),
        Map.entry("confirms", Scenarios::confirms),
        Map.entry("returned", Scenarios::returned),
        Map.entry("prefetch", Scenarios::prefetch),
        Map.entry("requeue", Scenarios::requeue),
        Map.entry("get", Scenarios::get),
        Map.entry("routing", Scenarios::routing),
        Map.entry("failure", Scenarios::failure),
        Map.entry("large", Scenarios::large),
        Map.entry("headers", Scenarios::headers),
        Map.entry("transaction", Scenarios::transaction),
        Map.entry("cancelled", Scenarios::cancelled),
        Map.entry("rpc", Scenarios::rpc),
        Map.entry("exclusive", Scenarios::exclusive),
        Map.entry("close", Scenarios::close));

    static Connection connect() throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setHost("127.0.0.1");
        factory.setPort(port);
        factory.setAutomaticRecoveryEnabled(false);
        return factory.newConnection();
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }

    /** Name of a new queue that belongs to the channel's connection. */
    static String temporaryQueue(Channel channel) throws IOException {
        return channel.queueDeclare("", false, true, false, null).getQueue();
    }

    static void publish(Channel channel, String queue, String... bodies) throws IOException {
        for (String body : bodies) {
            channel.basicPublish("", queue, null, bytes(body));
        }
    }

    static int readyCount(Channel channel, String queue) throws IOException {
        return channel.queueDeclarePassive(queue).getMessageCount();
    }

    /** Takes the next thing that arrived; fails when there is none in time. */
    static <T> T take(BlockingQueue<T> arrived) throws InterruptedException {
        T thing = arrived.poll(WAIT_S, TimeUnit.SECONDS);
        if (thing == null) {
            throw new IllegalStateException("waited in vain");
        }
        return thing;
    }

    static BlockingQueue<Delivery> startConsumer(Channel channel, String queue, boolean noAck)
            throws IOException {
        BlockingQueue<Delivery> arrived = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, noAck, (tag, message) -> arrived.add(message), tag -> {});
        return arrived;
    }

    /** The first `count` messages of a queue; `settle` settles each. */
    static List<Delivery> consume(Channel channel, String queue, int count, Settle settle)
            throws Exception {
        BlockingQueue<Delivery> arrived = startConsumer(channel, queue, false);
        List<Delivery> messages = new ArrayList<>();
        while (messages.size() < count) {
            messages.add(take(arrived));
            settle.message(messages.get(messages.size() - 1), messages.size());
        }
        return messages;
    }

    static List<Delivery> consume(Channel channel, String queue, int count) throws Exception {
        return consume(channel, queue, count, (message, number) ->
            channel.basicAck(message.getEnvelope().getDeliveryTag(), false));
    }

    static List<String> bodies(List<Delivery> messages) {
        return messages.stream().map(message -> text(message.getBody())).collect(Collectors.toList());
    }

    static List<Object> seen(Delivery message) {
        return List.of(text(message.getBody()), message.getEnvelope().isRedeliver());
    }

    static List<Object> seen(List<Delivery> messages) {
        return messages.stream().map(message -> seen(message)).collect(Collectors.toList());
    }

    /** The bodies of all ready messages, which are thereby gone. */
    static List<String> drain(Channel channel, String queue) throws IOException {
        List<String> found = new ArrayList<>();
        GetResponse message;
        while ((message = channel.basicGet(queue, true)) != null) {
            found.add(text(message.getBody()));
        }
        return found;
    }

    /** The reply code that closes a new channel when it does this. */
    static Integer failureCode(Connection connection, Action action) throws IOException {
        try {
            action.on(connection.createChannel());
        } catch (IOException failure) {
            ShutdownSignalException signal = (ShutdownSignalException) failure.getCause();
            return ((AMQP.Channel.Close) signal.getReason()).getReplyCode();
        }
        return null;
    }

    static String[] numbers(int count) {
        return IntStream.range(0, count).mapToObj(Integer::toString).toArray(String[]::new);
    }

    static Object order(Connection connection, String name) throws Exception {
        Channel channel = connection.createChannel();
        String queue = temporaryQueue(channel);
        publish(channel, queue, numbers(1000));
        List<Delivery> messages = consume(channel, queue, 1000);
        boolean redelivered = messages.stream().anyMatch(m -> m.getEnvelope().isRedeliver());
        channel.close();
        int left = readyCount(connection.createChannel(), queue);
        return Map.of("bodies", bodies(messages), "redelivered", redelivered, "left", left);
    }

    static Object confirms(Connection connection, String name) throws Exception {
        Channel channel = connection.createChannel();
        String queue = temporaryQueue(channel);
        List<Long> confirmed = Collections.synchronizedList(new ArrayList<>());
        channel.confirmSelect();
        channel.addConfirmListener((tag, multiple) -> {
            long first = multiple ? confirmed.size() + 1 : tag;
            for (long each = first; each <= tag; each++) {
                confirmed.add(each);
            }
        }, (tag, multiple) -> {});
        publish(channel, queue, numbers(500));
        channel.waitForConfirmsOrDie(WAIT_S * 1000);
        // Listeners run in the thread that reads this answer afterwards.
        int ready = readyCount(channel, queue);
        return Map.of("confirmed", confirmed.size(), "ready", ready);
    }

    static Object returned(Connection connection, String name) throws Exception {
        Channel channel = connection.createChannel();
        BlockingQueue<Object> events = new LinkedBlockingQueue<>();
        channel.addReturnListener(back -> events.add(Map.of(
            "code", back.getReplyCode(),
            "text", back.getReplyText(),
            "exchange", back.getExchange(),
            "key", back.getRoutingKey(),
            "id", back.getProperties().getMessageId(),
            "body", text(back.getBody()))));
        channel.addConfirmListener(
            (tag, multiple) -> events.add("confirmed"), (tag, multiple) -> events.add("nacked"));
        channel.confirmSelect();
        BasicProperties properties = new BasicProperties.Builder().messageId("m1").build();
        channel.basicPublish("amq.direct", "no such key", true, properties, bytes("back"));
        return Map.of("events", List.of(take(events), take(events)));
    }

    static Object prefetch(Connection connection, String name) throws Exception {
        Channel channel = connection.createChannel();
        String queue = temporaryQueue(channel);
        publish(channel, queue, numbers(10));
        channel.basicQos(3);
        BlockingQueue<Delivery> arrived = startConsumer(channel, queue, false);
        List<Delivery> messages = new ArrayList<>();
        List<Integer> held = new ArrayList<>();
        List<Integer> ready = new ArrayList<>();
        for (int count : new int[] {3, 5}) {
            while (messages.size() < count) {
                messages.add(take(arrived));
            }
            ready.add(readyCount(channel, queue));
            held.add(messages.size() + arrived.size());
            channel.basicAck(messages.get(count - 2).getEnvelope().getDeliveryTag(), true);
        }
        return Map.of("held", held, "ready", ready);
    }

    static Object requeue(Connection connection, String name) throws Exception {
        Channel channel = connection.createChannel();
        String queue = temporaryQueue(channel);
        channel.basicQos(1);
        publish(channel, queue, "acked", "again", "dropped");
        List<Delivery> messages = consume(channel, queue, 4, (message, count) -> {
            long tag = message.getEnvelope().getDeliveryTag();
            if (text(message.getBody()).equals("dropped")) {
                channel.basicReject(tag, false);
            } else if (count == 2) {
                channel.basicNack(tag, false, true);
            } else {
                channel.basicAck(tag, false);
            }
        });
        return Map.of("seen", seen(messages), "left", channel.queuePurge(queue).getMessageCount());
    }

    static Object get(Connection connection, String name) throws Exception {
        Channel channel = connection.createChannel();
        String queue = temporaryQueue(channel);
        boolean empty = channel.basicGet(queue, false) == null;
        publish(channel, queue, "1", "2");
        List<Object> got = new ArrayList<>();
        while (got.size() < 2) {
            GetResponse message = channel.basicGet(queue, false);
            boolean redelivered = message.getEnvelope().isRedeliver();
            got.add(List.of(text(message.getBody()), redelivered, message.getMessageCount()));
            channel.basicNack(message.getEnvelope().getDeliveryTag(), false, true);
        }
        return Map.of("empty", empty, "got", got);
    }

    static Object routing(Connection connection, String name) throws Exception {
        Channel channel = connection.createChannel();
        Map<String, String> queues = new HashMap<>();
        queues.put("through", temporaryQueue(channel));
        for (String type : List.of("direct", "topic", "headers")) {
            channel.exchangeDeclare(name + type, type, false, true, null);
            queues.put(type, temporaryQueue(channel));
        }

        channel.exchangeBind(name + "direct", name + "topic", "far.*");
        channel.queueBind(queues.get("through"), name + "direct", "far.away");
        channel.basicPublish(name + "topic", "far.away", null, bytes("far"));
        channel.basicPublish(name + "topic", "far.off", null, bytes("off"));

        channel.queueBind(queues.get("direct"), name + "direct", "key");
        channel.basicPublish(name + "direct", "key", null, bytes("hit"));
        channel.basicPublish(name + "direct", "other", null, bytes("missed"));
        channel.queueUnbind(queues.get("direct"), name + "direct", "key");
        channel.basicPublish(name + "direct", "key", null, bytes("unbound"));

        channel.queueBind(queues.get("topic"), name + "topic", "a.#");
        channel.queueBind(queues.get("topic"), name + "topic", "*.b");
        for (String key : List.of("a.b.c", "x.b", "x.c", "b")) {
            channel.basicPublish(name + "topic", key, null, bytes(key));
        }

        Map<String, Object> match = wanted(null);
        match.put("x-match", "all");
        channel.queueBind(queues.get("headers"), name + "headers", "", match);
        Map<String, Object> same = wanted(null);
        same.put("more", 1);
        channel.basicPublish(name + "headers", "", withHeaders(same), bytes("same"));
        channel.basicPublish(name + "headers", "", withHeaders(wanted(false)), bytes("deep"));
        channel.basicPublish(name + "headers", "", withHeaders(Map.of("n", 7L)), bytes("part"));

        Map<String, Object> arrived = new HashMap<>();
        for (Map.Entry<String, String> entry : queues.entrySet()) {
            arrived.put(entry.getKey(), drain(channel, entry.getValue()));
        }
        return arrived;
    }

    static BasicProperties withHeaders(Map<String, Object> headers) {
        return new BasicProperties.Builder().headers(headers).build();
    }

    static Map<String, Object> wanted(Object deepest) {
        Map<String, Object> inner = Collections.singletonMap("x", deepest);
        return new HashMap<>(Map.of(
            "n", 7L, "f", 1.5f, "on", true, "bytes", new byte[] {0, -1}, "price", new BigDecimal("1.25"),
            "when", new Date(1_700_000_000_000L),
            "nested", Map.of("list", List.of((byte) 1, "two", inner))));
    }

    static Object failure(Connection connection, String name) throws Exception {
        Channel healthy = connection.createChannel();
        String queue = temporaryQueue(healthy);
        List<Integer> codes = Arrays.asList(
            failureCode(connection, channel -> channel.queueDeclarePassive(name)),
            failureCode(connection, channel -> channel.exchangeDeclarePassive(name)),
            failureCode(connection, channel -> channel.queueDeclare(queue, true, true, false, null)));
        publish(healthy, queue, "fine");
        return Map.of("codes", codes, "bodies", bodies(consume(healthy, queue, 1)));
    }

    static Object large(Connection connection, String name) throws Exception {
        Channel channel = connection.createChannel();
        String queue = temporaryQueue(channel);
        List<byte[]> sent = new ArrayList<>();
        for (int size : new int[] {0, 131064, 131065, 1048576}) {
            byte[] body = new byte[size];
            new Random().nextBytes(body);
            sent.add(body);
            channel.basicPublish("", queue, null, body);
        }
        List<Integer> lengths = new ArrayList<>();
        List<Boolean> same = new ArrayList<>();
        for (Delivery message : consume(channel, queue, sent.size())) {
            same.add(Arrays.equals(message.getBody(), sent.get(lengths.size())));
            lengths.add(message.getBody().length);
        }
        return Map.of("lengths", lengths, "same", same);
    }

    static Object headers(Connection connection, String name) throws Exception {
        Channel channel = connection.createChannel();
        String queue = temporaryQueue(channel);
        Map<String, Object> headers = new HashMap<>();
        headers.put("b", Byte.MIN_VALUE);
        headers.put("s", Short.MIN_VALUE);
        headers.put("I", Integer.MIN_VALUE);
        headers.put("l", Long.MIN_VALUE);
        headers.put("f", 1.5f);
        headers.put("d", Math.PI);
        headers.put("t", true);
        headers.put("V", null);
        headers.put("D", new BigDecimal("-123.45"));
        headers.put("S", "ünïcode");
        headers.put("x", new byte[] {0, -1});
        headers.put("T", new Date(1_700_000_000_000L));
        headers.put("A", List.of(1, "two", Map.of("three", 3), List.of(false)));
        headers.put("F", Map.of("a", Collections.singletonMap("b", null)));
        BasicProperties properties = new BasicProperties.Builder()
            .headers(headers).contentType("application/json").contentEncoding("utf-8")
            .deliveryMode(2).priority(5).correlationId("c1").replyTo("r1").expiration("60000")
            .messageId("m1").timestamp(new Date(1_700_000_000_000L)).type("t1").userId("guest")
            .appId("a1").clusterId("k1").build();
        channel.basicPublish("", queue, properties, bytes("{}"));
        BasicProperties got = consume(channel, queue, 1).get(0).getProperties();
        return Map.of(
            "headers", ((List<?>) typed(got.getHeaders())).get(1),
            "properties", Arrays.asList(
                got.getContentType(), got.getContentEncoding(), got.getDeliveryMode(),
                got.getPriority(), got.getCorrelationId(), got.getReplyTo(), got.getExpiration(),
                got.getMessageId(), got.getTimestamp().getTime() / 1000, got.getType(),
                got.getUserId(), got.getAppId(), got.getClusterId()));
    }

    /** A field as [Java's type, value]. */
    static Object typed(Object value) {
        if (value == null) {
            return Arrays.asList("null", null);
        } else if (value instanceof LongString) {
            return List.of("LongString", value.toString());
        } else if (value instanceof byte[] data) {
            return List.of("byte[]", Base64.getEncoder().encodeToString(data));
        } else if (value instanceof Date time) {
            return List.of("Date", time.getTime() / 1000);
        } else if (value instanceof BigDecimal number) {
            return List.of("BigDecimal", number.toPlainString());
        } else if (value instanceof List<?> list) {
            return List.of("List", list.stream().map(Scenarios::typed).collect(Collectors.toList()));
        } else if (value instanceof Map<?, ?> table) {
            Map<Object, Object> fields = new TreeMap<>();
            table.forEach((key, field) -> fields.put(key, typed(field)));
            return List.of("Map", fields);
        }
        return List.of(value.getClass().getSimpleName(), value);
    }

    static Object transaction(Connection connection, String name) throws Exception {
        Channel watcher = connection.createChannel();
        String queue = temporaryQueue(watcher);
        Channel channel = connection.createChannel();
        List<Integer> ready = new ArrayList<>();
        channel.txSelect();
        publish(channel, queue, "1", "2");
        ready.add(readyCount(watcher, queue));
        channel.txCommit();
        ready.add(readyCount(watcher, queue));
        publish(channel, queue, "3", "4");
        channel.txRollback();
        channel.txCommit();
        ready.add(readyCount(watcher, queue));
        for (int taken = 0; taken < 2; taken++) {
            GetResponse message = channel.basicGet(queue, false);
            channel.basicAck(message.getEnvelope().getDeliveryTag(), false);
        }
        channel.txRollback();
        channel.txCommit();
        channel.close();
        return Map.of("ready", ready, "again", seen(consume(watcher, queue, 2)));
    }

    static Object cancelled(Connection connection, String name) throws Exception {
        Channel channel = connection.createChannel();
        String queue = temporaryQueue(channel);
        BlockingQueue<String> notices = new LinkedBlockingQueue<>();
        String tag = channel.basicConsume(queue, false, (ours, message) -> {}, notices::add);
        connection.createChannel().queueDelete(queue);
        boolean cancelled = take(notices).equals(tag);
        String next = temporaryQueue(channel);
        publish(channel, next, "after");
        return Map.of("cancelled", cancelled, "bodies", bodies(consume(channel, next, 1)));
    }

    static Object rpc(Connection connection, String name) throws Exception {
        Channel server = connection.createChannel();
        String queue = temporaryQueue(server);
        Channel client = connection.createChannel();
        BlockingQueue<Delivery> replies = startConsumer(client, REPLY_ADDRESS, true);
        BasicProperties properties =
            new BasicProperties.Builder().replyTo(REPLY_ADDRESS).correlationId("c1").build();
        client.basicPublish("", queue, properties, bytes("question"));
        consume(server, queue, 1, (request, count) -> {
            BasicProperties asked = request.getProperties();
            BasicProperties answer =
                new BasicProperties.Builder().correlationId(asked.getCorrelationId()).build();
            byte[] body = bytes(text(request.getBody()) + " answered");
            server.basicPublish("", asked.getReplyTo(), answer, body);
            server.basicAck(request.getEnvelope().getDeliveryTag(), false);
        });
        Delivery reply = take(replies);
        return Map.of("body", text(reply.getBody()), "id", reply.getProperties().getCorrelationId());
    }

    static Object exclusive(Connection connection, String name) throws Exception {
        Connection owner = connect();
        String queue = temporaryQueue(owner.createChannel());
        List<Integer> codes = new ArrayList<>();
        codes.add(failureCode(connection, channel -> readyCount(channel, queue)));
        owner.close();
        codes.add(failureCode(connection, channel -> readyCount(channel, queue)));
        return Map.of("codes", codes);
    }

    static Object close(Connection connection, String name) throws Exception {
        Channel channel = connection.createChannel();
        channel.queueDeclare(name, true, false, false, null);
        publish(channel, name, "kept");
        readyCount(channel, name); // what another connection does comes after the answer
        List<Object> got = new ArrayList<>();
        while (got.size() < 2) {
            Connection other = connect();
            GetResponse message = other.createChannel().basicGet(name, false);
            got.add(List.of(text(message.getBody()), message.getEnvelope().isRedeliver()));
            other.close();
        }
        channel.queueDelete(name);
        return Map.of("got", got);
    }

    static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream()
                .map(entry -> json(entry.getKey()) + ":" + json(entry.getValue()))
                .collect(Collectors.joining(",", "{", "}"));
        } else if (value instanceof List<?> list) {
            Function<Object, String> item = Scenarios::json;
            return list.stream().map(item).collect(Collectors.joining(",", "[", "]"));
        } else if (value instanceof String text) {
            return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
        }
        return String.valueOf(value);
    }

    public static void main(String[] arguments) throws Exception {
        port = Integer.parseInt(arguments[0]);
        Object outcome;
        // Closing throws as well when the broker does not answer orderly.
        try (Connection connection = connect()) {
            outcome = SCENARIOS.get(arguments[1]).play(connection, arguments[2]);
        }
        System.out.println(json(outcome));
    }
}
