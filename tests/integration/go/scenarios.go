// One scenario of a Go client against a broker: scenarios PORT SCENARIO NAME
//
// Prints what happened as one line of JSON and exits 0; test_go_amqp091.py judges it. An error goes
// to standard error with exit code 1. Queues belong to the connection, exchanges go with them.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	wait         = 20 * time.Second
	replyAddress = "amq.rabbitmq.reply-to"
)

type object = map[string]any

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// receive takes the next value; it panics when there is none in time.
func receive[T any](values <-chan T) T {
	select {
	case value, open := <-values:
		if !open {
			panic("the library closed a channel that was waited for")
		}
		return value
	case <-time.After(wait):
		panic("waited in vain")
	}
}

func connect() *amqp.Connection {
	return must(amqp.Dial("amqp://guest:guest@127.0.0.1:" + os.Args[1]))
}

// temporaryQueue makes a queue that belongs to the channel's connection.
func temporaryQueue(channel *amqp.Channel) string {
	return must(channel.QueueDeclare("", false, false, true, false, nil)).Name
}

func publish(channel *amqp.Channel, exchange, key string, message amqp.Publishing) {
	check(channel.PublishWithContext(context.Background(), exchange, key, false, false, message))
}

func publishAll(channel *amqp.Channel, queue string, bodies ...string) {
	for _, body := range bodies {
		publish(channel, "", queue, amqp.Publishing{Body: []byte(body)})
	}
}

func readyCount(channel *amqp.Channel, queue string) int {
	return must(channel.QueueDeclarePassive(queue, false, false, true, false, nil)).Messages
}

func startConsumer(channel *amqp.Channel, queue, tag string) <-chan amqp.Delivery {
	return must(channel.Consume(queue, tag, false, false, false, false, nil))
}

// consume returns the first `count` messages of a queue; `settle` settles each.
func consume(channel *amqp.Channel, queue string, count int, settle func(amqp.Delivery, int) error) []amqp.Delivery {
	deliveries := startConsumer(channel, queue, "")
	messages := make([]amqp.Delivery, count)
	for index := range messages {
		messages[index] = receive(deliveries)
		check(settle(messages[index], index+1))
	}
	return messages
}

func ack(message amqp.Delivery, _ int) error { return message.Ack(false) }

func bodies(messages []amqp.Delivery) []string {
	found := []string{}
	for _, message := range messages {
		found = append(found, string(message.Body))
	}
	return found
}

func bodiesAndFlags(messages []amqp.Delivery) [][]any {
	found := [][]any{}
	for _, message := range messages {
		found = append(found, []any{string(message.Body), message.Redelivered})
	}
	return found
}

// drain returns the bodies of all ready messages, which are thereby gone.
func drain(channel *amqp.Channel, queue string) []string {
	messages := []amqp.Delivery{}
	for {
		message, ok, err := channel.Get(queue, true)
		check(err)
		if !ok {
			return bodies(messages)
		}
		messages = append(messages, message)
	}
}

func code(err error) int {
	var failure *amqp.Error
	if !errors.As(err, &failure) {
		return 0
	}
	return failure.Code
}

func numbers(count int) []string {
	texts := make([]string, count)
	for number := range texts {
		texts[number] = strconv.Itoa(number)
	}
	return texts
}

func order(connection *amqp.Connection, _ string) object {
	channel := must(connection.Channel())
	queue := temporaryQueue(channel)
	publishAll(channel, queue, numbers(1000)...)
	messages := consume(channel, queue, 1000, ack)
	redelivered := false
	for _, message := range messages {
		redelivered = redelivered || message.Redelivered
	}
	check(channel.Close())
	left := readyCount(must(connection.Channel()), queue)
	return object{"bodies": bodies(messages), "redelivered": redelivered, "left": left}
}

func confirms(connection *amqp.Connection, _ string) object {
	channel := must(connection.Channel())
	queue := temporaryQueue(channel)
	check(channel.Confirm(false))
	outcomes := channel.NotifyPublish(make(chan amqp.Confirmation, 500))
	publishAll(channel, queue, numbers(500)...)
	confirmed := 0
	for tag := uint64(1); tag <= 500; tag++ {
		if outcome := receive(outcomes); outcome.Ack && outcome.DeliveryTag == tag {
			confirmed++
		}
	}
	return object{"confirmed": confirmed, "ready": readyCount(channel, queue)}
}

func returned(connection *amqp.Connection, _ string) object {
	channel := must(connection.Channel())
	check(channel.Confirm(false))
	// Without buffers: what comes first is taken first.
	returns := channel.NotifyReturn(make(chan amqp.Return))
	outcomes := channel.NotifyPublish(make(chan amqp.Confirmation))
	message := amqp.Publishing{Body: []byte("back"), MessageId: "m1"}
	check(channel.PublishWithContext(context.Background(), "amq.direct", "no such key", true, false, message))
	events := []any{}
	for len(events) < 2 {
		select {
		case back := <-returns:
			events = append(events, object{
				"code": back.ReplyCode, "text": back.ReplyText, "exchange": back.Exchange,
				"key": back.RoutingKey, "id": back.MessageId, "body": string(back.Body),
			})
		case outcome := <-outcomes:
			events = append(events, map[bool]string{true: "confirmed", false: "nacked"}[outcome.Ack])
		case <-time.After(wait):
			panic("no return and no confirm")
		}
	}
	return object{"events": events}
}

func prefetch(connection *amqp.Connection, _ string) object {
	channel := must(connection.Channel())
	queue := temporaryQueue(channel)
	publishAll(channel, queue, numbers(10)...)
	check(channel.Qos(3, 0, false))
	deliveries := startConsumer(channel, queue, "")
	messages := []amqp.Delivery{}
	held, ready := []int{}, []int{}
	for _, count := range []int{3, 5} {
		for len(messages) < count {
			messages = append(messages, receive(deliveries))
		}
		ready = append(ready, readyCount(channel, queue))
		// The library hands deliveries on in the background, one at a time.
		select {
		case message := <-deliveries:
			messages = append(messages, message)
		default:
		}
		held = append(held, len(messages))
		check(messages[count-2].Ack(true))
	}
	return object{"held": held, "ready": ready}
}

func requeue(connection *amqp.Connection, _ string) object {
	channel := must(connection.Channel())
	queue := temporaryQueue(channel)
	check(channel.Qos(1, 0, false))
	publishAll(channel, queue, "acked", "again", "dropped")
	messages := consume(channel, queue, 4, func(message amqp.Delivery, count int) error {
		if string(message.Body) == "dropped" {
			return message.Reject(false)
		} else if count == 2 {
			return message.Nack(false, true)
		}
		return message.Ack(false)
	})
	return object{"seen": bodiesAndFlags(messages), "left": must(channel.QueuePurge(queue, false))}
}

func get(connection *amqp.Connection, _ string) object {
	channel := must(connection.Channel())
	queue := temporaryQueue(channel)
	_, filled, err := channel.Get(queue, false)
	check(err)
	publishAll(channel, queue, "1", "2")
	got := [][]any{}
	for len(got) < 2 {
		message, ok, err := channel.Get(queue, false)
		check(err)
		if !ok {
			panic("there is nothing to get")
		}
		got = append(got, []any{string(message.Body), message.Redelivered, message.MessageCount})
		check(message.Nack(false, true))
	}
	return object{"empty": !filled, "got": got}
}

func routing(connection *amqp.Connection, name string) object {
	channel := must(connection.Channel())
	queues := map[string]string{"through": temporaryQueue(channel)}
	for _, kind := range []string{"direct", "topic", "headers"} {
		check(channel.ExchangeDeclare(name+"-"+kind, kind, false, true, false, false, nil))
		queues[kind] = temporaryQueue(channel)
	}
	bind := func(queue, kind, key string, arguments amqp.Table) {
		check(channel.QueueBind(queues[queue], key, name+"-"+kind, false, arguments))
	}
	send := func(kind, key, body string, headers amqp.Table) {
		publish(channel, name+"-"+kind, key, amqp.Publishing{Body: []byte(body), Headers: headers})
	}

	check(channel.ExchangeBind(name+"-direct", "far.*", name+"-topic", false, nil))
	bind("through", "direct", "far.away", nil)
	send("topic", "far.away", "far", nil)
	send("topic", "far.off", "off", nil)

	bind("direct", "direct", "key", nil)
	send("direct", "key", "hit", nil)
	send("direct", "other", "missed", nil)
	check(channel.QueueUnbind(queues["direct"], "key", name+"-direct", nil))
	send("direct", "key", "unbound", nil)

	bind("topic", "topic", "a.#", nil)
	bind("topic", "topic", "*.b", nil)
	for _, key := range []string{"a.b.c", "x.b", "x.c", "b"} {
		send("topic", key, key, nil)
	}

	wanted := func(deepest any) amqp.Table {
		list := []any{int8(1), "two", amqp.Table{"x": deepest}}
		return amqp.Table{"n": int64(7), "f": 1.5, "on": true, "bytes": []byte{0, 255},
			"when": time.Unix(1700000000, 0), "nested": amqp.Table{"list": list}}
	}
	match, same := wanted(nil), wanted(nil)
	match["x-match"], same["more"] = "all", int32(1)
	bind("headers", "headers", "", match)
	send("headers", "", "same", same)
	send("headers", "", "deep", wanted(false))
	send("headers", "", "part", amqp.Table{"n": int64(7), "on": true})

	arrived := object{}
	for kind, queue := range queues {
		arrived[kind] = drain(channel, queue)
	}
	return arrived
}

func failure(connection *amqp.Connection, name string) object {
	healthy := must(connection.Channel())
	queue := temporaryQueue(healthy)
	codes := []int{}
	fail := func(action func(*amqp.Channel) error) {
		channel := must(connection.Channel())
		codes = append(codes, code(action(channel)))
	}
	fail(func(channel *amqp.Channel) error {
		_, err := channel.QueueDeclarePassive(name, false, false, false, false, nil)
		return err
	})
	fail(func(channel *amqp.Channel) error {
		return channel.ExchangeDeclarePassive(name, "direct", false, false, false, false, nil)
	})
	fail(func(channel *amqp.Channel) error {
		_, err := channel.QueueDeclare(queue, true, false, true, false, nil)
		return err
	})
	publishAll(healthy, queue, "fine")
	return object{"codes": codes, "bodies": bodies(consume(healthy, queue, 1, ack))}
}

func large(connection *amqp.Connection, _ string) object {
	channel := must(connection.Channel())
	queue := temporaryQueue(channel)
	sent := [][]byte{}
	for _, size := range []int{0, 131064, 131065, 1048576} {
		body := make([]byte, size)
		must(rand.Read(body))
		sent = append(sent, body)
		publish(channel, "", queue, amqp.Publishing{Body: body})
	}
	lengths, same := []int{}, []bool{}
	for index, message := range consume(channel, queue, len(sent), ack) {
		lengths = append(lengths, len(message.Body))
		same = append(same, bytes.Equal(message.Body, sent[index]))
	}
	return object{"lengths": lengths, "same": same}
}

// typed shows a field as [Go's type, value].
func typed(value any) []any {
	shown := value
	switch field := value.(type) {
	case []byte:
		shown = hex.EncodeToString(field)
	case time.Time:
		shown = field.Unix()
	case amqp.Decimal:
		shown = []any{field.Value, field.Scale}
	case []any:
		items := []any{}
		for _, item := range field {
			items = append(items, typed(item))
		}
		shown = items
	case amqp.Table:
		shown = typedFields(field)
	}
	return []any{fmt.Sprintf("%T", value), shown}
}

func typedFields(table amqp.Table) object {
	fields := object{}
	for name, value := range table {
		fields[name] = typed(value)
	}
	return fields
}

func headers(connection *amqp.Connection, _ string) object {
	channel := must(connection.Channel())
	queue := temporaryQueue(channel)
	publish(channel, "", queue, amqp.Publishing{
		Headers: amqp.Table{
			"b": int8(-128), "B": byte(255), "s": int16(-32768), "I": int32(math.MinInt32),
			"l": int64(math.MinInt64), "f": float32(1.5), "d": math.Pi, "t": true, "V": nil,
			"D": amqp.Decimal{Scale: 2, Value: -12345}, "S": "ünïcode", "x": []byte{0, 255},
			"T": time.Unix(1700000000, 0),
			"A": []any{int32(1), "two", amqp.Table{"three": int32(3)}, []any{false}},
			"F": amqp.Table{"a": amqp.Table{"b": nil}},
		},
		ContentType: "application/json", ContentEncoding: "utf-8", DeliveryMode: amqp.Persistent,
		Priority: 5, CorrelationId: "c1", ReplyTo: "r1", Expiration: "60000", MessageId: "m1",
		Timestamp: time.Unix(1700000000, 0), Type: "t1", UserId: "guest", AppId: "a1",
		Body: []byte("{}"),
	})
	message := consume(channel, queue, 1, ack)[0]
	return object{
		"headers": typedFields(message.Headers),
		"properties": []any{
			message.ContentType, message.ContentEncoding, message.DeliveryMode, message.Priority,
			message.CorrelationId, message.ReplyTo, message.Expiration, message.MessageId,
			message.Timestamp.Unix(), message.Type, message.UserId, message.AppId,
		},
	}
}

func transaction(connection *amqp.Connection, _ string) object {
	watcher := must(connection.Channel())
	queue := temporaryQueue(watcher)
	channel := must(connection.Channel())
	check(channel.Tx())
	publishAll(channel, queue, "1", "2")
	ready := []int{readyCount(watcher, queue)}
	check(channel.TxCommit())
	ready = append(ready, readyCount(watcher, queue))
	publishAll(channel, queue, "3", "4")
	check(channel.TxRollback())
	check(channel.TxCommit())
	ready = append(ready, readyCount(watcher, queue))
	for taken := 0; taken < 2; taken++ {
		message, _, err := channel.Get(queue, false)
		check(err)
		check(message.Ack(false))
	}
	check(channel.TxRollback())
	check(channel.TxCommit())
	check(channel.Close())
	return object{"ready": ready, "again": bodiesAndFlags(consume(watcher, queue, 2, ack))}
}

func cancelled(connection *amqp.Connection, _ string) object {
	channel := must(connection.Channel())
	queue := temporaryQueue(channel)
	notices := channel.NotifyCancel(make(chan string, 1))
	deliveries := startConsumer(channel, queue, "mine")
	must(must(connection.Channel()).QueueDelete(queue, false, false, false))
	tag := receive(notices)
	_, open := <-deliveries
	next := temporaryQueue(channel)
	publishAll(channel, next, "after")
	after := bodies(consume(channel, next, 1, ack))
	return object{"cancelled": tag == "mine" && !open, "bodies": after}
}

func rpc(connection *amqp.Connection, _ string) object {
	server := must(connection.Channel())
	queue := temporaryQueue(server)
	client := must(connection.Channel())
	replies := must(client.Consume(replyAddress, "", true, false, false, false, nil))
	question := amqp.Publishing{Body: []byte("question"), ReplyTo: replyAddress, CorrelationId: "c1"}
	publish(client, "", queue, question)
	consume(server, queue, 1, func(request amqp.Delivery, _ int) error {
		answer := amqp.Publishing{Body: append(request.Body, " answered"...), CorrelationId: request.CorrelationId}
		publish(server, "", request.ReplyTo, answer)
		return request.Ack(false)
	})
	reply := receive(replies)
	return object{"body": string(reply.Body), "id": reply.CorrelationId}
}

func exclusive(connection *amqp.Connection, _ string) object {
	owner := connect()
	queue := temporaryQueue(must(owner.Channel()))
	look := func() int {
		_, err := must(connection.Channel()).QueueDeclarePassive(queue, false, false, false, false, nil)
		return code(err)
	}
	codes := []int{look()}
	check(owner.Close())
	return object{"codes": append(codes, look())}
}

func closing(connection *amqp.Connection, name string) object {
	channel := must(connection.Channel())
	must(channel.QueueDeclare(name, true, false, false, false, nil))
	publishAll(channel, name, "kept")
	readyCount(channel, name) // what another connection does comes after the answer
	got := []amqp.Delivery{}
	for len(got) < 2 {
		other := connect()
		message, _, err := must(other.Channel()).Get(name, false)
		check(err)
		got = append(got, message)
		check(other.Close())
	}
	must(channel.QueueDelete(name, false, false, false))
	return object{"got": bodiesAndFlags(got)}
}

func main() {
	defer func() {
		if problem := recover(); problem != nil {
			fmt.Fprintln(os.Stderr, problem)
			os.Exit(1)
		}
	}()
	scenarios := map[string]func(*amqp.Connection, string) object{
		"order": order, "confirms": confirms, "returned": returned, "prefetch": prefetch,
		"requeue": requeue, "get": get, "routing": routing, "failure": failure, "large": large,
		"headers": headers, "transaction": transaction, "cancelled": cancelled, "rpc": rpc,
		"exclusive": exclusive, "close": closing,
	}
	connection := connect()
	outcome := scenarios[os.Args[2]](connection, os.Args[3])
	check(connection.Close())
	check(json.NewEncoder(os.Stdout).Encode(outcome))
}
