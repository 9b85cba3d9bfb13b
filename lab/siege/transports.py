"""Attacks on what lies below MQTT: TCP, TLS, WebSocket, the header of a proxy, HTTP."""

import base64
import functools
import os
import ssl
import struct
import time

import cases
import wire
from cases import is_cut, push

case = functools.partial(cases.case, peak_mib=300)


def hold(field, port, packet, count, seconds_between=0.0):
    """Connections that send so much and then nothing."""
    streams = []
    for number in range(count):
        stream = field.dial(port, 1 + number % 20)
        if stream is not None:
            stream.settimeout(1)
            push(stream, packet)
            streams.append(stream)
        time.sleep(seconds_between)
    field.wait()
    return {"connections": len(streams), "cut": sum(map(is_cut, streams))}


def come_again(field, port, packet):
    count = 0
    while field.goes_on():
        stream = field.dial(port, 1 + count % 20)
        if stream is not None:
            push(stream, packet)
            stream.close()
            count += 1
    return {"connections": count}


def trickle(field, port, data, count):
    """Each byte in a segment of its own."""
    streams = [stream for n in range(count) if (stream := field.dial(port, 1 + n % 20))]
    for at in range(len(data)):
        if not field.goes_on():
            break
        for stream in streams:
            push(stream, data[at : at + 1])
    field.wait()
    return {"connections": len(streams), "cut": sum(map(is_cut, streams))}


def resets(stream):
    stream.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SO_LINGER: a reset
    stream.close()


@case("resets", "connections that are reset at once, before or after a CONNECT")
def reset_at_once(field):
    count = 0
    while field.goes_on():
        stream = field.dial(field.open_port, 1 + count % 20)
        if stream is not None:
            if count % 2:
                push(stream, wire.connect(f"reset-{count}") + wire.subscribe("#"))
            resets(stream)
            count += 1
    return {"connections": count}


@case("half-closed", "2,000 connections whose sending side is closed after the CONNECT")
def half_closed(field):
    streams = []
    for number in range(field.pick(2_000, 200)):
        stream = field.dial(field.open_port, 1 + number % 20)
        if stream is not None:
            push(stream, wire.connect(f"half-closed-{number}") + wire.subscribe("siege/#"))
            stream.shutdown(1)
            streams.append(stream)
    field.wait()
    return {"connections": len(streams), "cut": sum(map(is_cut, streams))}


HELLO = bytes.fromhex("16030102000100") + b"\x01\xfc\x03\x03"


@case("tls-half-hellos", "500 TLS handshakes that stop within the first message")
def tls_half_hellos(field):
    return hold(field, field.tls_port, HELLO + os.urandom(100), field.pick(500, 100))


@case("tls-trickle", "200 TLS handshakes, a byte at a time")
def tls_trickle(field):
    return trickle(field, field.tls_port, HELLO + os.urandom(400), field.pick(200, 50))


@case("tls-garbage", "bytes that are not TLS, and records of the largest size, at full speed")
def tls_garbage(field):
    return come_again(field, field.tls_port, b"\x16\x03\x03\x48\x00" + os.urandom(18_432))


def tls_of(field, number):
    stream = field.dial(field.tls_port, 1 + number % 20)
    if stream is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return context.wrap_socket(stream)
    except OSError:
        return None


@case("tls-handshakes", "whole TLS handshakes without a CONNECT, at full speed")
def tls_handshakes(field):
    count = 0
    while field.goes_on():
        stream = tls_of(field, count)
        if stream is not None:
            stream.close()
            count += 1
    return {"handshakes": count}


@case("tls-silent", "TLS connections that send nothing after the handshake")
def tls_silent(field):
    streams = [stream for n in range(field.pick(300, 30)) if (stream := tls_of(field, n))]
    field.wait()
    return {"connections": len(streams)}


@case("tls-small-records", "TLS records of one byte each, at full speed")
def tls_small_records(field):
    stream = tls_of(field, 0)
    data, sent = wire.connect("records") + wire.publish("siege/records", b"x" * 200) * 100, 0
    while field.goes_on():
        for byte in data:
            stream.send(bytes([byte]))
            sent += 1
            if not field.goes_on():
                break
        data = wire.publish("siege/records", b"x" * 200) * 10
    return {"records": sent}


def websocket(field, number=0):
    """Upgraded, with nothing said."""
    stream = field.dial(field.ws_port, 1 + number % 20)
    if stream is None:
        return None
    key = base64.b64encode(os.urandom(16)).decode()
    push(stream, (
        f"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1:{field.ws_port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    ).encode())  # fmt: skip
    answer = b""
    while b"\r\n\r\n" not in answer:
        more = stream.recv(4096)
        if not more:
            return None
        answer += more
    return stream if b" 101 " in answer else None


def frame(opcode, payload, is_final=True, length=None):
    size = len(payload) if length is None else length
    head = bytes([(0x80 if is_final else 0) | opcode])
    if size < 126:
        head += bytes([0x80 | size])
    elif size < 65_536:
        head += b"\xfe" + struct.pack(">H", size)
    else:
        head += b"\xff" + struct.pack(">Q", size)
    return head + bytes(4) + payload


def say(field, stream, portion, reads=True):
    """The same at full speed; what comes is read away, or not."""
    sent = 0
    stream.settimeout(0.2)
    while field.goes_on():
        try:
            sent += stream.send(portion)
            if reads:
                stream.setblocking(False)
                while stream.recv(1 << 16):
                    pass
        except (BlockingIOError, TimeoutError):
            pass
        except OSError:
            break
        finally:
            stream.settimeout(0.2)
    return {"sent_mb": sent / (1 << 20)}


@case("ws-fragments", "WebSocket fragments of one byte each that never make a whole message")
def ws_fragments(field):
    stream = websocket(field)
    push(stream, frame(2, wire.connect("fragments")) + frame(2, b"\x30", is_final=False))
    body = b"\x90\x4e" + wire.prefixed("siege/x") + b"\0" + b"x" * 9_990
    fragments = b"".join(frame(0, bytes([byte]), is_final=False) for byte in body)
    return say(field, stream, fragments)


@case("ws-pings", "WebSocket pings of 125 bytes without end")
def ws_pings(field):
    stream = websocket(field)
    push(stream, frame(2, wire.connect("ws-pings")))
    return say(field, stream, frame(9, b"p" * 125) * 500)


@case("ws-pings-unread", "the same, and it reads no answer")
def ws_pings_unread(field):
    stream = websocket(field)
    push(stream, frame(2, wire.connect("ws-pings-unread")))
    return say(field, stream, frame(9, b"p" * 125) * 500, reads=False)


@case("ws-pings-strange", "the same before a CONNECT")
def ws_pings_strange(field):
    stream = websocket(field)
    return say(field, stream, frame(9, b"p" * 125) * 500, reads=False)


@case("ws-empty-frames", "WebSocket frames with nothing in them, at full speed")
def ws_empty_frames(field):
    stream = websocket(field)
    push(stream, frame(2, wire.connect("ws-empty")))
    return say(field, stream, frame(2, b"") * 5_000)


@case("ws-long-frames", "WebSocket frames that say they are of exabytes, from 200 connections")
def ws_long_frames(field):
    streams = [stream for n in range(field.pick(200, 40)) if (stream := websocket(field, n))]
    for stream in streams:
        push(stream, frame(2, wire.connect("")[:5], length=1 << 62))
    field.wait()
    return {"connections": len(streams), "cut": sum(map(is_cut, streams))}


@case("ws-long-headers", "upgrades with 200 headers of 4 KB, at full speed")
def ws_long_headers(field):
    request = b"GET /mqtt HTTP/1.1\r\n"
    request += b"".join(b"X-%d: %s\r\n" % (n, b"h" * 4_000) for n in range(200))
    return come_again(field, field.ws_port, request)


@case("ws-trickle", "200 upgrades, a byte at a time")
def ws_trickle(field):
    request = b"GET /mqtt HTTP/1.1\r\nHost: x\r\n" + b"X-Slow: x\r\n" * 100
    return trickle(field, field.ws_port, request, field.pick(200, 50))


@case("proxy-trickle", "200 connections that send the header of a proxy a byte at a time")
def proxy_trickle(field):
    return trickle(field, field.proxy_port, b"PROXY TCP4 " + b"1" * 90, field.pick(200, 50))


@case("proxy-long", "headers of a proxy with 64 KB of extensions that never end")
def proxy_long(field):
    head = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff" + bytes(60_000)
    return hold(field, field.proxy_port, head, field.pick(500, 100))


@case("proxy-wrong", "invalid PROXY headers, at full speed")
def proxy_wrong(field):
    return come_again(field, field.proxy_port, wire.connect("no-proxy"))


def nobody_is_let_in(outcome):
    count = outcome.facts["let_in"]
    return [f"{count} were let in without a header"] if count else []


@case("proxy-missing", "clients that connect without the proxy", expect=nobody_is_let_in)
def proxy_missing(field):
    let_in = 0
    while field.goes_on():
        peer = field.client(1, port=field.proxy_port)
        let_in += peer is not None
    return {"let_in": let_in}


@case("proxy-addresses", "connections each from another address, as a proxy says, unfinished")
def proxy_addresses(field):
    streams = []
    for number in range(field.pick(3_000, 300)):
        stream = field.dial(field.proxy_port, 1 + number % 20)
        if stream is not None:
            stream.settimeout(1)
            address = f"10.{number >> 8}.{number & 255}.1"
            push(stream, f"PROXY TCP4 {address} 10.0.0.1 1000 1883\r\n".encode())
            push(stream, wire.connect("x" * 60_000)[:50_000])
            streams.append(stream)
    field.wait()
    return {"connections": len(streams), "cut": sum(map(is_cut, streams))}


def no_page_is_let_in(outcome):
    count = outcome.facts["let_in"]
    return [f"pages of other origins were let in {count} times"] if count else []


@case("ws-origins", "web pages of other origins", expect=no_page_is_let_in)
def ws_origins(field):
    let_in = 0
    while field.goes_on():
        stream = field.dial(field.ws_port, 1)
        if stream is None:
            continue
        push(stream, (
            b"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: mqtt\r\n"
            b"Origin: http://evil.example\r\n\r\n"
        ))  # fmt: skip
        try:
            let_in += b" 101 " in stream.recv(4096)
        except OSError:
            pass
        stream.close()
    return {"let_in": let_in}


@case("http-unread", "pipelined requests for /metrics whose answers are not read")
def http_unread(field):
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 200
    streams = [stream for n in range(field.pick(30, 6))
               if (stream := field.dial(field.http_port, 1 + n))]  # fmt: skip
    for stream in streams:
        stream.settimeout(0.1)
    while field.goes_on():
        for stream in streams:
            push(stream, request)
    return {"connections": len(streams)}


@case("http-long-headers", "requests with endless headers and bodies")
def http_long_headers(field):
    request = b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n"
    request += b"X-Long: " + b"h" * 60_000 + b"\r\n\r\n" + bytes(100_000)
    return come_again(field, field.http_port, request)


@case("http-trickle", "100 requests, a byte at a time")
def http_trickle(field):
    request = b"GET /metrics HTTP/1.1\r\n" + b"X-Slow: x\r\n" * 200
    return trickle(field, field.http_port, request, 100)
