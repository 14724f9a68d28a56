#!/usr/bin/env python3
# ruff: noqa
# fmt: off
# mypy: ignore-errors
"""Replay recorded AMQP and HTTP transcripts against a broker.

    replay.py --host 127.0.0.1 --amqp-port 5672 --http-port 15672 FOLDER [FOLDER ...]

Standard library only, so that it runs against any broker without this project; the tests use it through
transcripts.py.  See the README.md next to the transcripts for the file format.
Exit status 0 when every scenario passed.  One `<id>.diff.txt` per failed scenario is
written to the folder given with --out (default ./replay-diffs).
"""
import argparse, base64, fnmatch, hashlib, http.client, json, os, pathlib, re, select, socket, struct, sys, time, traceback

# --------------------------------------------------------------------------- AMQP codec

_M = """
10 10 connection.start version_major:octet version_minor:octet server_properties:table mechanisms:longstr locales:longstr
10 11 connection.start-ok client_properties:table mechanism:shortstr response:longstr locale:shortstr
10 20 connection.secure challenge:longstr
10 21 connection.secure-ok response:longstr
10 30 connection.tune channel_max:short frame_max:long heartbeat:short
10 31 connection.tune-ok channel_max:short frame_max:long heartbeat:short
10 40 connection.open vhost:shortstr reserved_1:shortstr reserved_2:bit
10 41 connection.open-ok reserved_1:shortstr
10 50 connection.close reply_code:short reply_text:shortstr class_id:short method_id:short
10 51 connection.close-ok
10 60 connection.blocked reason:shortstr
10 61 connection.unblocked
10 70 connection.update-secret new_secret:longstr reason:shortstr
10 71 connection.update-secret-ok
20 10 channel.open reserved_1:shortstr
20 11 channel.open-ok reserved_1:longstr
20 20 channel.flow active:bit
20 21 channel.flow-ok active:bit
20 40 channel.close reply_code:short reply_text:shortstr class_id:short method_id:short
20 41 channel.close-ok
30 10 access.request realm:shortstr exclusive:bit passive:bit active:bit write:bit read:bit
30 11 access.request-ok ticket:short
40 10 exchange.declare reserved_1:short exchange:shortstr type:shortstr passive:bit durable:bit auto_delete:bit internal:bit no_wait:bit arguments:table
40 11 exchange.declare-ok
40 20 exchange.delete reserved_1:short exchange:shortstr if_unused:bit no_wait:bit
40 21 exchange.delete-ok
40 30 exchange.bind reserved_1:short destination:shortstr source:shortstr routing_key:shortstr no_wait:bit arguments:table
40 31 exchange.bind-ok
40 40 exchange.unbind reserved_1:short destination:shortstr source:shortstr routing_key:shortstr no_wait:bit arguments:table
40 51 exchange.unbind-ok
50 10 queue.declare reserved_1:short queue:shortstr passive:bit durable:bit exclusive:bit auto_delete:bit no_wait:bit arguments:table
50 11 queue.declare-ok queue:shortstr message_count:long consumer_count:long
50 20 queue.bind reserved_1:short queue:shortstr exchange:shortstr routing_key:shortstr no_wait:bit arguments:table
50 21 queue.bind-ok
50 30 queue.purge reserved_1:short queue:shortstr no_wait:bit
50 31 queue.purge-ok message_count:long
50 40 queue.delete reserved_1:short queue:shortstr if_unused:bit if_empty:bit no_wait:bit
50 41 queue.delete-ok message_count:long
50 50 queue.unbind reserved_1:short queue:shortstr exchange:shortstr routing_key:shortstr arguments:table
50 51 queue.unbind-ok
60 10 basic.qos prefetch_size:long prefetch_count:short global:bit
60 11 basic.qos-ok
60 20 basic.consume reserved_1:short queue:shortstr consumer_tag:shortstr no_local:bit no_ack:bit exclusive:bit no_wait:bit arguments:table
60 21 basic.consume-ok consumer_tag:shortstr
60 30 basic.cancel consumer_tag:shortstr no_wait:bit
60 31 basic.cancel-ok consumer_tag:shortstr
60 40 basic.publish reserved_1:short exchange:shortstr routing_key:shortstr mandatory:bit immediate:bit
60 50 basic.return reply_code:short reply_text:shortstr exchange:shortstr routing_key:shortstr
60 60 basic.deliver consumer_tag:shortstr delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr
60 70 basic.get reserved_1:short queue:shortstr no_ack:bit
60 71 basic.get-ok delivery_tag:longlong redelivered:bit exchange:shortstr routing_key:shortstr message_count:long
60 72 basic.get-empty reserved_1:shortstr
60 80 basic.ack delivery_tag:longlong multiple:bit
60 90 basic.reject delivery_tag:longlong requeue:bit
60 100 basic.recover-async requeue:bit
60 110 basic.recover requeue:bit
60 111 basic.recover-ok
60 120 basic.nack delivery_tag:longlong multiple:bit requeue:bit
85 10 confirm.select no_wait:bit
85 11 confirm.select-ok
90 10 tx.select
90 11 tx.select-ok
90 20 tx.commit
90 21 tx.commit-ok
90 30 tx.rollback
90 31 tx.rollback-ok
"""
METHODS, BY_ID = {}, {}
for _l in _M.strip().splitlines():
    _p = _l.split()
    _a = [tuple(x.split(":")) for x in _p[3:]]
    METHODS[_p[2]] = (int(_p[0]), int(_p[1]), _a)
    BY_ID[(int(_p[0]), int(_p[1]))] = (_p[2], _a)
CONTENT = {"basic.publish", "basic.return", "basic.deliver", "basic.get-ok"}
PROPS = [("content_type", "s", 15), ("content_encoding", "s", 14), ("headers", "F", 13), ("delivery_mode", "B", 12),
         ("priority", "B", 11), ("correlation_id", "s", 10), ("reply_to", "s", 9), ("expiration", "s", 8),
         ("message_id", "s", 7), ("timestamp", "T", 6), ("type", "s", 5), ("user_id", "s", 4), ("app_id", "s", 3),
         ("reserved", "s", 2)]
_FIX = {"t": "?", "b": "b", "B": "B", "s": "h", "U": "h", "u": "H", "I": "i", "i": "I", "l": "q", "L": "q",
        "f": "f", "d": "d", "T": "q"}


def _txt(b):
    try:
        return b.decode("utf-8")
    except UnicodeDecodeError:
        return {"$hex": b.hex()}


def _raw(v):
    return bytes.fromhex(v["$hex"]) if isinstance(v, dict) else v.encode("utf-8")


def enc_ss(v):
    b = _raw(v)
    return struct.pack("B", len(b) & 255) + b


def enc_ls(v):
    b = _raw(v)
    return struct.pack(">I", len(b)) + b


def enc_value(t, v):
    if t in _FIX:
        return struct.pack(">" + _FIX[t], v)
    if t == "S":
        return enc_ls(v)
    if t == "x":
        b = bytes.fromhex(v)
        return struct.pack(">I", len(b)) + b
    if t == "F":
        return enc_table(v)
    if t == "A":
        b = b"".join(x[0].encode() + enc_value(*x) for x in v)
        return struct.pack(">I", len(b)) + b
    if t == "D":
        return struct.pack(">Bi", v[0], v[1])
    if t == "V":
        return b""
    raise ValueError("field type " + t)


def enc_table(rows):
    b = b"".join(enc_ss(k) + t.encode() + enc_value(t, v) for k, t, v in rows)
    return struct.pack(">I", len(b)) + b


class Reader:
    def __init__(self, b):
        self.b, self.p = b, 0

    def take(self, n):
        if self.p + n > len(self.b):
            raise ValueError("short payload")
        r = self.b[self.p:self.p + n]
        self.p += n
        return r

    def fix(self, f):
        return struct.unpack(">" + f, self.take(struct.calcsize(">" + f)))[0]

    def ss(self):
        return _txt(self.take(self.fix("B")))

    def ls(self):
        return _txt(self.take(self.fix("I")))

    def value(self, t):
        if t in _FIX:
            return self.fix(_FIX[t])
        if t == "S":
            return self.ls()
        if t == "x":
            return self.take(self.fix("I")).hex()
        if t == "F":
            return self.table()
        if t == "A":
            r, out = Reader(self.take(self.fix("I"))), []
            while r.p < len(r.b):
                ty = chr(r.fix("B"))
                out.append([ty, r.value(ty)])
            return out
        if t == "D":
            return [self.fix("B"), self.fix("i")]
        if t == "V":
            return None
        raise ValueError("field type %r" % t)

    def table(self):
        r, out = Reader(self.take(self.fix("I"))), []
        while r.p < len(r.b):
            k = r.ss()
            ty = chr(r.fix("B"))
            out.append([k, ty, r.value(ty)])
        return out


def enc_args(spec, args):
    out, bits, nb = b"", 0, 0
    for name, ty in spec + [(None, None)]:
        if ty == "bit":
            bits |= bool(args.get(name, False)) << nb
            nb += 1
            continue
        if nb:
            out += struct.pack("B", bits)
            bits = nb = 0
        if ty is None:
            break
        if ty == "shortstr":
            out += enc_ss(args.get(name, ""))
        elif ty == "longstr":
            out += enc_ls(args.get(name, ""))
        elif ty == "table":
            out += enc_table(args.get(name, []))
        else:
            out += struct.pack({"octet": "B", "short": ">H", "long": ">I", "longlong": ">Q"}[ty], args.get(name, 0))
    return out


def dec_args(spec, r):
    out, nb, cur = {}, 0, 0
    for name, ty in spec:
        if ty == "bit":
            if nb % 8 == 0:
                cur = r.fix("B")
            out[name] = bool(cur >> (nb % 8) & 1)
            nb += 1
            continue
        nb = 0
        out[name] = {"shortstr": r.ss, "longstr": r.ls, "table": r.table}[ty]() if ty in ("shortstr", "longstr", "table") \
            else r.fix({"octet": "B", "short": "H", "long": "I", "longlong": "Q"}[ty])
    return out


def enc_props(props):
    flags, out = 0, b""
    for name, ty, bit in PROPS:
        if name in props:
            flags |= 1 << bit
            v = props[name]
            out += enc_ss(v) if ty == "s" else enc_value(ty, v)
    return struct.pack(">H", flags) + out


def dec_props(r):
    flags, out = r.fix("H"), {}
    for name, ty, bit in PROPS:
        if flags >> bit & 1:
            out[name] = r.ss() if ty == "s" else r.value(ty)
    return out


def frame(ftype, ch, payload):
    return struct.pack(">BHI", ftype, ch, len(payload)) + payload + b"\xce"


def enc_frame(f):
    if "raw" in f:
        return bytes.fromhex(f["raw"])
    k = f["type"]
    if k == "method":
        c, m, spec = METHODS[f["method"]]
        return frame(1, f["ch"], struct.pack(">HH", c, m) + enc_args(spec, f["args"]))
    if k == "header":
        return frame(2, f["ch"], struct.pack(">HHQ", f.get("class", 60), 0, f["size"]) + enc_props(f["props"]))
    if k == "body":
        return frame(3, f["ch"], enc_body(f["body"]))
    if k == "heartbeat":
        return frame(8, f["ch"], b"")
    raise ValueError(k)


def enc_body(b):
    if "text" in b:
        return b["text"].encode()
    if "hex" in b:
        return bytes.fromhex(b["hex"])
    if "repeat" in b:
        s = b["repeat"].encode()
        return (s * (b["len"] // len(s) + 1))[:b["len"]]
    raise ValueError(b)


def show_body(b):
    if len(b) > 2048:
        return {"sha256": hashlib.sha256(b).hexdigest(), "len": len(b)}
    try:
        t = b.decode("utf-8")
        if all(c >= " " or c in "\n\t" for c in t):
            return {"text": t}
    except UnicodeDecodeError:
        pass
    return {"hex": b.hex()}


class Conn:
    """A raw AMQP socket that yields units: a method, or a method with its content."""

    def __init__(self, host, port):
        self.s = socket.create_connection((host, port), 10)
        self.s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf, self.eof, self.keep_hb, self.part = b"", False, False, {}
        self.ready = []

    def send(self, data):
        try:
            self.s.settimeout(20)
            self.s.sendall(data)
        except OSError:
            pass

    def fill(self, timeout):
        if self.eof:
            return False
        try:
            r, _, _ = select.select([self.s], [], [], max(0, timeout))
            if not r:
                return False
            d = self.s.recv(1 << 18)
        except OSError:
            d = b""
        if not d:
            self.eof = True
            return False
        self.buf += d
        return True

    def raw_frame(self):
        if len(self.buf) < 8:
            return None
        if self.buf[:4] == b"AMQP":
            out, self.buf = self.buf[:8], self.buf[8:]
            return ("AMQP", 0, out, out)
        t, ch, n = struct.unpack(">BHI", self.buf[:7])
        if len(self.buf) < n + 8:
            return None
        whole, self.buf = self.buf[:n + 8], self.buf[n + 8:]
        return (t, ch, whole[7:-1], whole)

    def pump(self):
        while True:
            f = self.raw_frame()
            if f is None:
                return
            t, ch, pl, whole = f
            if t == "AMQP":
                self.ready.append({"protocol_header": pl.hex()})
            elif t == 8:
                if self.keep_hb:
                    self.ready.append({"heartbeat": ch})
            elif t == 1:
                c, m = struct.unpack(">HH", pl[:4])
                name, spec = BY_ID.get((c, m), ("%d.%d" % (c, m), []))
                u = {"ch": ch, "method": name, "args": dec_args(spec, Reader(pl[4:])), "hex": [whole.hex()]}
                if name in CONTENT:
                    self.part[ch] = [u, None, b"", 0]
                else:
                    self.ready.append(u)
            elif t == 2 and ch in self.part:
                r = Reader(pl)
                r.take(4)
                st = self.part[ch]
                st[1] = r.fix("Q")
                st[0]["props"] = dec_props(r)
                st[0]["hex"].append(whole.hex())
                self.done(ch)
            elif t == 3 and ch in self.part:
                st = self.part[ch]
                st[2] += pl
                st[3] += 1
                st[0]["hex"].append(whole.hex())
                self.done(ch)
            else:
                self.ready.append({"ch": ch, "unexpected_frame": t, "hex": [whole.hex()]})

    def done(self, ch):
        u, size, body, n = self.part[ch]
        if len(body) >= size:
            u["body"] = show_body(body)
            u["_raw_body"] = body
            if n > 1:
                u["body_frames"] = n
            del self.part[ch]
            self.ready.append(u)

    def unit(self, timeout):
        end = time.monotonic() + timeout
        while True:
            if self.ready:
                return self.ready.pop(0)
            self.pump()
            if self.ready:
                continue
            if self.eof:
                return None
            left = end - time.monotonic()
            if left <= 0:
                return None
            self.fill(left)

    def units(self, n, timeout):
        out, end = [], time.monotonic() + timeout
        while len(out) < n:
            u = self.unit(max(0, end - time.monotonic()))
            if u is None:
                break
            out.append(u)
        return out

    def wait_eof(self, timeout):
        end = time.monotonic() + timeout
        while not self.eof and time.monotonic() < end:
            self.fill(end - time.monotonic())
        return self.eof

    def close(self):
        try:
            self.s.close()
        except OSError:
            pass


def method_frame(ch, name, **args):
    return enc_frame({"type": "method", "ch": ch, "method": name, "args": args})


CLIENT_CAPS = [["capabilities", "F", [[k, "t", True] for k in
               ("authentication_failure_close", "basic.nack", "connection.blocked", "consumer_cancel_notify", "publisher_confirms")]],
               ["product", "S", "replay"]]


def handshake(c, o):
    """The standard opening used by the `open` step."""
    c.send(b"AMQP\x00\x00\x09\x01")
    u = c.unit(10)
    if not u or u.get("method") != "connection.start":
        raise Mismatch("open: wanted connection.start, got %r" % (u,))
    props = CLIENT_CAPS + ([["connection_name", "S", o["connection_name"]]] if "connection_name" in o else [])
    c.send(method_frame(0, "connection.start-ok", client_properties=props, mechanism="PLAIN",
                        response="\0%s\0%s" % (o["user"], o["password"]), locale="en_US"))
    u = c.unit(10)
    if not u or u.get("method") != "connection.tune":
        raise Mismatch("open: wanted connection.tune, got %r" % (u,))
    c.send(method_frame(0, "connection.tune-ok", channel_max=o.get("channel_max", u["args"]["channel_max"]),
                        frame_max=o.get("frame_max", u["args"]["frame_max"]), heartbeat=o.get("heartbeat", 0)))
    c.send(method_frame(0, "connection.open", vhost=o["vhost"]))
    u = c.unit(10)
    if not u or u.get("method") != "connection.open-ok":
        raise Mismatch("open: wanted connection.open-ok, got %r" % (u,))
    for ch in o.get("channels", [1]):
        c.send(method_frame(ch, "channel.open"))
        u = c.unit(10)
        if not u or u.get("method") != "channel.open-ok":
            raise Mismatch("open: wanted channel.open-ok, got %r" % (u,))


# --------------------------------------------------------------------------- comparing

class Mismatch(Exception):
    pass


def subst(v, vars_):
    if isinstance(v, str):
        return re.sub(r"\{\{(\w+)\}\}", lambda m: str(vars_.get(m.group(1), m.group(0))), v) if "{{" in v else v
    if isinstance(v, list):
        return [subst(x, vars_) for x in v]
    if isinstance(v, dict):
        return {k: subst(x, vars_) for k, x in v.items()}
    return v


_NUM = (int, float)


def type_ok(t, a):
    if t.endswith("?"):
        return a is None or type_ok(t[:-1], a)
    if t == "any":
        return True
    if t == "int":
        return isinstance(a, int) and not isinstance(a, bool)
    if t == "number":
        return isinstance(a, _NUM) and not isinstance(a, bool)
    return {"string": isinstance(a, str), "bool": isinstance(a, bool), "null": a is None,
            "array": isinstance(a, list), "object": isinstance(a, dict)}[t]


def match(exp, act, vars_, opt, path="$"):
    """Return a list of difference lines (empty when act satisfies exp)."""
    if isinstance(exp, dict):
        if "$cap" in exp:
            if not isinstance(act, str) or not re.search(exp["re"], act):
                return ["%s: wanted text like /%s/, got %r" % (path, exp["re"], act)]
            vars_[exp["$cap"]] = act
            return []
        if "$type" in exp:
            if not type_ok(exp["$type"], act):
                return ["%s: wanted a %s, got %r" % (path, exp["$type"], act)]
            if "of" in exp and isinstance(act, list):
                return [d for i, x in enumerate(act) for d in match(exp["of"], x, vars_, opt, "%s[%d]" % (path, i))]
            return []
        if "$re" in exp:
            return [] if isinstance(act, str) and re.search(exp["$re"], act) else \
                ["%s: wanted text like /%s/, got %r" % (path, exp["$re"], act)]
        if "$now" in exp:
            unit = {"s": 1, "ms": 1000}[exp["$now"]]
            ok = isinstance(act, _NUM) and abs(act - time.time() * unit) < exp.get("within", 120) * unit
            return [] if ok else ["%s: wanted a time near now (%s), got %r" % (path, exp["$now"], act)]
        if "$set" in exp:
            if not isinstance(act, list):
                return ["%s: wanted a list, got %r" % (path, act)]
            left, out = list(act), []
            for e in exp["$set"]:
                best = None
                for i, a in enumerate(left):
                    d = match(e, a, dict(vars_), opt, path + "[]")
                    if best is None or len(d) < len(best[1]):
                        best = (i, d)
                    if not d:
                        break
                if best is None:
                    out.append("%s: missing item %s" % (path, json.dumps(e)[:300]))
                    continue
                match(e, left[best[0]], vars_, opt)
                left.pop(best[0])
                out += best[1]
            for a in left:
                out.append("%s: unwanted item %s" % (path, json.dumps(a)[:300]))
            return out
        if not isinstance(act, dict):
            return ["%s: wanted an object, got %r" % (path, act)]
        out = []
        for k in exp:
            if k not in act:
                out.append("%s.%s: missing (wanted %s)" % (path, k, json.dumps(exp[k])[:200]))
            else:
                out += match(exp[k], act[k], vars_, opt, "%s.%s" % (path, k))
        if opt.exact_keys or path.startswith("$amqp"):
            for k in act:
                if k not in exp:
                    out.append("%s.%s: not wanted (got %s)" % (path, k, json.dumps(act[k])[:200]))
        return out
    if isinstance(exp, list):
        if not isinstance(act, list):
            return ["%s: wanted a list, got %r" % (path, act)]
        if opt.lenient and path.startswith("$amqp") and exp and act and all(is_row(r) for r in exp) and all(is_row(r) for r in act):
            exp, act = sorted(exp, key=lambda r: str(r[0])), sorted(act, key=lambda r: str(r[0]))
        out = []
        for i in range(max(len(exp), len(act))):
            p = "%s[%d]" % (path, i)
            if i >= len(exp):
                out.append("%s: not wanted (got %s)" % (p, json.dumps(act[i])[:300]))
            elif i >= len(act):
                out.append("%s: missing (wanted %s)" % (p, json.dumps(exp[i])[:300]))
            elif opt.lenient and is_row(exp[i]) and is_row(act[i]) and exp[i][1] in "bBsuIilLU" and act[i][1] in "bBsuIilLU":
                out += match([exp[i][0], exp[i][2]], [act[i][0], act[i][2]], vars_, opt, p)
            else:
                out += match(exp[i], act[i], vars_, opt, p)
        return out
    if isinstance(exp, str):
        exp = subst(exp, vars_)
    if isinstance(exp, float) and isinstance(act, _NUM):
        return [] if abs(exp - act) < 1e-9 * max(1, abs(exp)) else ["%s: wanted %r, got %r" % (path, exp, act)]
    if type(exp) is not type(act) or exp != act:
        return ["%s: wanted %s, got %s" % (path, json.dumps(exp)[:400], json.dumps(act)[:400])]
    return []


def is_row(r):
    return isinstance(r, list) and len(r) == 3 and isinstance(r[0], str) and isinstance(r[1], str) and len(r[1]) == 1


def strip(u):
    return {k: v for k, v in u.items() if k not in ("hex",) and not k.startswith("_")}


# --------------------------------------------------------------------------- HTTP

def http_call(opt, method, path, user=None, password=None, body=None, headers=None, port=None):
    h = dict(headers or {})
    if user is not None:
        h["Authorization"] = "Basic " + base64.b64encode(("%s:%s" % (user, password)).encode()).decode()
    data = None
    if body is not None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        h.setdefault("Content-Type", "application/json")
    elif method in ("PUT", "POST"):
        h.setdefault("Content-Length", "0")
    c = http.client.HTTPConnection(opt.host, port or opt.http_port, timeout=30)
    try:
        c.request(method, path, body=data, headers=h)
        r = c.getresponse()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, r.read()
    finally:
        c.close()


def admin(opt, method, path, body=None):
    return http_call(opt, method, path, opt.user, opt.password, body)


def quote(s):
    from urllib.parse import quote as q
    return q(s, safe="")


# --------------------------------------------------------------------------- scenarios

class Run:
    def __init__(self, opt, sc, shared_vars=None):
        self.opt, self.sc, self.vars, self.conns, self.diffs = opt, sc, dict(shared_vars or {}), {}, []

    def password(self, user):
        return self.opt.password if user == self.opt.user else user + "-pw"

    def prepare(self):
        o = self.opt
        if o.no_admin:
            return
        for v in self.sc.get("vhosts", []):
            admin(o, "DELETE", "/api/vhosts/" + quote(v))
            st, _, b = admin(o, "PUT", "/api/vhosts/" + quote(v))
            if st not in (201, 204):
                raise Mismatch("cannot create vhost %s: %s %r" % (v, st, b))
        for u in self.sc.get("users", []):
            admin(o, "DELETE", "/api/users/" + quote(u["name"]))
            st, _, b = admin(o, "PUT", "/api/users/" + quote(u["name"]), {"password": self.password(u["name"]), "tags": u.get("tags", "")})
            if st not in (201, 204):
                raise Mismatch("cannot create user: %s %r" % (st, b))
            for v, p in u.get("permissions", {}).items():
                admin(o, "PUT", "/api/permissions/%s/%s" % (quote(v), quote(u["name"])), {"configure": p[0], "write": p[1], "read": p[2]})

    def cleanup(self):
        for c in self.conns.values():
            c.close()
        if self.opt.no_admin:
            return
        for v in self.sc.get("vhosts", []):
            admin(self.opt, "DELETE", "/api/vhosts/" + quote(v))
        for u in self.sc.get("users", []):
            admin(self.opt, "DELETE", "/api/users/" + quote(u["name"]))
        for p in self.sc.get("cleanup", []):
            admin(self.opt, p[0], p[1])

    def steps(self):
        for i, st in enumerate(self.sc["steps"]):
            try:
                d = self.step(st)
            except Mismatch as e:
                d = [str(e)]
            if d:
                self.diffs.append("step %d (%s %s%s)" % (i, st["op"], st.get("c", ""), " # " + st["note"] if "note" in st else ""))
                self.diffs += ["    " + x for x in d]
                if st["op"] not in ("http",):
                    return

    def final(self):
        for n, c in self.conns.items():
            u = c.unit(0.03)
            if u:
                self.diffs.append("at the end, connection %s: unwanted %s" % (n, json.dumps(strip(u))[:500]))

    def step(self, st):
        return getattr(self, "op_" + st["op"])(st)

    def op_connect(self, st):
        self.conns[st["c"]] = Conn(self.opt.host, self.opt.amqp_port)

    def op_open(self, st):
        self.conns[st["c"]] = c = Conn(self.opt.host, self.opt.amqp_port)
        c.keep_hb = st.get("keep_heartbeats", False)
        user = st.get("user", self.opt.user)
        handshake(c, dict(st, user=user, password=self.password(user)))

    def op_send(self, st):
        if "raw" in st:
            data = bytes.fromhex(st["raw"])
        elif st.get("vars") or "hex" not in st:
            data = b"".join(enc_frame(subst(f, self.vars)) for f in st["frames"])
        else:
            data = bytes.fromhex(st["hex"])
        self.conns[st["c"]].send(data)

    def op_recv(self, st):
        c, want = self.conns[st["c"]], st["units"]
        got = c.units(len(want), st.get("timeout", self.opt.timeout))
        if st.get("quiet"):
            got += c.units(99, st["quiet"] / 1000)
        e = {"$set": [self.pub(u) for u in want]} if st.get("order") == "any" else [self.pub(u) for u in want]
        d = match(e, [strip(u) for u in got], self.vars, self.opt, "$amqp")
        if d and len(got) < len(want) and c.eof:
            d.append("connection was closed by the broker")
        if not d and self.opt.bytes:
            for w, g in zip(want, got):
                if w.get("hex") and not has_mask(self.pub(w)) and w["hex"] != g.get("hex") and st.get("order") != "any":
                    d.append("same meaning, other bytes:\n      wanted %s\n      got    %s" % (w["hex"], g["hex"]))
        return d

    @staticmethod
    def pub(u):
        return {k: v for k, v in u.items() if k != "hex"}

    def op_idle(self, st):
        got = self.conns[st["c"]].units(99, st["ms"] / 1000)
        return ["wanted silence, got %s" % json.dumps(strip(u))[:500] for u in got]

    def op_confirms(self, st):
        """Collect basic.ack / basic.nack until publishes 1..upto are settled; grouping does not matter."""
        c, acked, nacked = self.conns[st["c"]], set(), set()
        done, end, out = st.get("after", 0), time.monotonic() + self.opt.timeout, []
        while len(acked | nacked) < st["upto"] - done:
            u = c.unit(max(0, end - time.monotonic()))
            if u is None:
                out.append("not all publishes were settled: acks %s nacks %s" % (sorted(acked), sorted(nacked)))
                break
            if u.get("method") not in ("basic.ack", "basic.nack"):
                out.append("unwanted %s" % json.dumps(strip(u)))
                break
            t = u["args"]["delivery_tag"]
            new = set(range(done + 1, t + 1)) - acked - nacked if u["args"]["multiple"] else {t}
            (acked if u["method"] == "basic.ack" else nacked).update(new)
        return out + match({"acked": st["acked"], "nacked": st["nacked"]}, {"acked": sorted(acked), "nacked": sorted(nacked)}, self.vars, self.opt, "$amqp.confirms")

    def op_drain(self, st):
        """Take everything that arrives in a time window without comparing it."""
        self.conns[st["c"]].units(100000, st["ms"] / 1000)

    def op_eof(self, st):
        c = self.conns[st["c"]]
        if st["closed"]:
            extra = []
            end = time.monotonic() + st.get("timeout", self.opt.timeout)
            while not c.eof and time.monotonic() < end:
                u = c.unit(max(0.01, end - time.monotonic()))
                if u:
                    extra.append("unwanted %s" % json.dumps(strip(u)))
            return extra + ([] if c.eof else ["wanted the broker to close the socket"])
        c.fill(0.05)
        return ["the broker closed the socket"] if c.eof else []

    def op_disconnect(self, st):
        self.conns.pop(st["c"]).close()

    def op_sleep(self, st):
        time.sleep(st["ms"] / 1000)

    def op_wait_queue(self, st):
        """Poll the management API until a queue has the wanted numbers (stabilises asynchronous effects)."""
        end, last = time.monotonic() + st.get("timeout", 8), None
        while True:
            s, _, b = admin(self.opt, "GET", "/api/queues/%s/%s" % (quote(st["vhost"]), quote(subst(st["queue"], self.vars))))
            last = json.loads(b) if s == 200 else None
            want = st["until"]
            if want == "gone" and s == 404:
                return []
            if want != "gone" and last is not None and all(last.get(k) == v for k, v in want.items()):
                return []
            if time.monotonic() > end:
                return ["queue %s never became %s, last %s" % (st["queue"], want, s if last is None else {k: last.get(k) for k in want} if want != "gone" else "there")]
            time.sleep(0.05)

    def op_http(self, st):
        q = st["req"]
        body = subst(q["body"], self.vars) if "body" in q else None
        user = q.get("user", "guest")
        if user == "guest":
            user = self.opt.user
        status, headers, raw = http_call(self.opt, q["method"], subst(q["path"], self.vars), user if user != "-" else None,
                                         q.get("password", self.password(user)), body, q.get("headers"),
                                         self.opt.metrics_port if q.get("port") == "metrics" else None)
        want, got = st["res"], {"status": status}
        if "headers" in want:
            got["headers"] = {k: headers[k] for k in want["headers"] if k in headers}
        if "json" in want:
            try:
                got["json"] = json.loads(raw)
            except ValueError:
                got["json"] = {"not json": raw.decode("utf-8", "replace")[:400]}
        if "text" in want:
            got["text"] = raw.decode("utf-8", "replace")
        if "lines" in want:
            got["lines"] = metric_lines(raw.decode("utf-8", "replace"))
            if not self.opt.exact_keys:
                got["lines"] = [x for x in got["lines"] if x in want["lines"]]
        return match(want, got, self.vars, self.opt, "$http")


def metric_lines(text):
    """Metric text without values: comment lines as they are, sample lines up to the value."""
    return sorted({l if l.startswith("#") else re.sub(r'(_(?:version|cluster)=)"[^"]*"', r'\1"*"', l.rsplit(" ", 1)[0])
                   for l in text.splitlines() if l.strip()})


def has_mask(v):
    if isinstance(v, dict):
        return any(k in ("$cap", "$type", "$re", "$now", "$set") for k in v) or any(has_mask(x) for x in v.values())
    if isinstance(v, list):
        return any(has_mask(x) for x in v)
    return isinstance(v, str) and "{{" in v


def load(folder):
    out = []
    for root, _, files in sorted(os.walk(folder)):
        for f in sorted(files):
            if f.endswith(".json") and f != "world.json":
                with open(os.path.join(root, f), encoding="utf-8") as h:
                    sc = json.load(h)
                if "steps" in sc:
                    sc["_dir"] = root
                    out.append(sc)
    return out


def main():
    ap = argparse.ArgumentParser(description="replay transcripts against a broker")
    ap.add_argument("--host", default="127.0.0.1")
    ap.add_argument("--amqp-port", type=int, default=5672)
    ap.add_argument("--http-port", type=int, default=15672)
    ap.add_argument("--metrics-port", type=int, default=15692)
    ap.add_argument("--user", default="guest")
    ap.add_argument("--password", default="guest")
    ap.add_argument("--timeout", type=float, default=5.0, help="seconds to wait for an expected frame")
    ap.add_argument("--only", default="*", help="glob on scenario ids")
    ap.add_argument("--out", default="replay-diffs")
    ap.add_argument("--bytes", action="store_true", help="also compare unmasked frames byte for byte")
    ap.add_argument("--exact-keys", action="store_true", help="extra keys in HTTP answers are failures")
    ap.add_argument("--lenient", action="store_true", help="AMQP tables: ignore key order and integer width")
    ap.add_argument("--no-admin", action="store_true", help="no HTTP API: vhosts and users stand already (prepare.py); leaves out scenarios that need it")
    ap.add_argument("--skip-tag", action="append", default=[], help="leave out scenarios with this tag (may be given several times)")
    ap.add_argument("-v", "--verbose", action="store_true")
    ap.add_argument("folders", nargs="+")
    opt = ap.parse_args()
    os.makedirs(opt.out, exist_ok=True)
    scs = [s for f in opt.folders for s in load(f) if fnmatch.fnmatch(s["id"], opt.only) and not set(s.get("tags", ())) & set(opt.skip_tag)]
    if opt.no_admin:
        scs = [s for s in scs if not s.get("world") and not s.get("cleanup") and all(st["op"] not in ("http", "wait_queue") for st in s["steps"])]
    passed = failed = 0
    worlds, wrun = {}, None
    for s in scs:
        if s.get("world"):
            worlds.setdefault(s["_dir"], []).append(s)
    plan = []
    for d, group in worlds.items():
        plan.append(("world", d))
        plan += [("in-world", s) for s in group]
        plan.append(("end-world", d))
    plan += [("alone", s) for s in scs if not s.get("world")]
    for kind, x in plan:
        if kind == "world":
            wrun = Run(opt, json.loads(pathlib.Path(x, "world.json").read_text(encoding="utf-8")))
            try:
                wrun.prepare()
                wrun.steps()
            except Exception as e:
                wrun.diffs.append("world: %r" % e)
            if wrun.diffs:
                print("world of %s could not be built:\n  %s" % (x, "\n  ".join(wrun.diffs)))
            continue
        if kind == "end-world":
            wrun.cleanup()
            wrun = None
            continue
        r = Run(opt, x, wrun.vars if wrun else None)
        try:
            r.prepare()
            r.steps()
            r.final()
        except Exception:
            r.diffs.append(traceback.format_exc())
        try:
            r.cleanup()
        except Exception as e:
            r.diffs.append("clean-up: %r" % e)
        path = os.path.join(opt.out, x["id"] + ".diff.txt")
        if os.path.exists(path):
            os.remove(path)
        if r.diffs:
            failed += 1
            with open(path, "w", encoding="utf-8") as h:
                h.write("%s: %s\n" % (x["id"], x.get("title", "")) + "\n".join(r.diffs) + "\n")
            print("FAIL %s %s" % (x["id"], r.diffs[1].strip()[:160] if len(r.diffs) > 1 else r.diffs[0][:160]))
        else:
            passed += 1
            if opt.verbose:
                print("ok   %s" % x["id"])
    print("SUITE: %d passed, %d failed" % (passed, failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
