"""The client's side of SCRAM-SHA-256 (RFC 5802, RFC 7677), with Python's own hashes."""

import base64
import hashlib
import hmac
import os


class ScramClient:
    def __init__(self, user, password):
        self.password = password.encode()
        self.nonce = base64.b64encode(os.urandom(18)).decode()
        self.bare = f"n={user},r={self.nonce}"
        self.server_signature = None

    def first(self):
        return ("n,," + self.bare).encode()

    def final(self, challenge):
        challenge = challenge.decode()
        fields = dict(part.split("=", 1) for part in challenge.split(","))
        assert fields["r"].startswith(self.nonce) and len(fields["r"]) > len(self.nonce)
        salt, rounds = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password, salt, rounds)
        client_key = _hmac(salted, b"Client Key")
        without_proof = f"c=biws,r={fields['r']}"
        message = ",".join([self.bare, challenge, without_proof]).encode()
        signature = _hmac(hashlib.sha256(client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self.server_signature = _hmac(_hmac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, answer):
        assert answer == b"v=" + base64.b64encode(self.server_signature)


def _hmac(key, message):
    return hmac.new(key, message, hashlib.sha256).digest()


def salt_of(port, user):
    """The salt that a broker names for a user."""
    from test_clauses import auth_properties
    from wire import AUTH, Peer, connect, properties_of

    with Peer(port) as peer:
        peer.send(connect(properties=auth_properties(ScramClient(user, "x").first())))
        challenge = dict(properties_of(peer.expect(AUTH)[1:]))[0x16].decode()
    return dict(part.split("=", 1) for part in challenge.split(","))["s"]
