"""One Kafka server (KRaft, broker and controller in one process) with a listener for each test."""

import contextlib
import os
import socket
import subprocess
import time
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "correct-horse"
START_TIME_MAX = 180
CLUSTER = "quelea-tests-of-kafkaA"
LISTENERS = ["PLAIN", "MTLS", "SASL", "SASLTLS", "METADATA", "HUB", "CONTROLLER"]
PROTOCOLS = {"MTLS": "SSL", "SASL": "SASL_PLAINTEXT", "SASLTLS": "SASL_SSL"}


class Kafka:
    def __init__(self, directory, jars, authority):
        self.directory, self.jars, self.authority = directory, jars, authority
        ports = free_ports(len(LISTENERS) + 1)
        self.ports = dict(zip(LISTENERS, ports))
        self.hub_port = ports[-1]
        self.child = None
        self.log = directory / "kafka.log"
        self.write_properties()
        scram = [f"SCRAM-SHA-{bits}=[name=ann,password={PASSWORD}]" for bits in (256, 512)]
        self.java("kafka.tools.StorageTool", "format", "-t", CLUSTER,
                  "-c", directory / "server.properties",
                  *(part for user in scram for part in ("--add-scram", user)))  # fmt: skip

    def command(self, *arguments):
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        options += ["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return ["java", *options, "-cp", f"{self.jars}/*", *map(str, arguments)]

    def java(self, *arguments):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def write_properties(self):
        def each(make):
            return ",".join(make(name) for name in LISTENERS)

        # The addresses that the server names to its clients.
        advertised = {name: f"127.0.0.1:{port}" for name, port in self.ports.items()}
        advertised["METADATA"] = "169.254.169.254:80"
        advertised["HUB"] = f"127.0.0.1:{self.hub_port}"
        del advertised["CONTROLLER"]
        mechanisms = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
        security = "org.apache.kafka.common.security"
        jaas = {
            "plain": f'{security}.plain.PlainLoginModule required user_ann="{PASSWORD}";',
            "scram-sha-256": f"{security}.scram.ScramLoginModule required;",
            "scram-sha-512": f"{security}.scram.ScramLoginModule required;",
            "oauthbearer": f"{security}.oauthbearer.OAuthBearerLoginModule required "
            'unsecuredLoginStringClaim_sub="server";',
        }
        lines = [
            "process.roles=broker,controller",
            "node.id=1",
            f"controller.quorum.voters=1@127.0.0.1:{self.ports['CONTROLLER']}",
            "controller.listener.names=CONTROLLER",
            "inter.broker.listener.name=PLAIN",
            f"listeners={each(lambda name: f'{name}://127.0.0.1:{self.ports[name]}')}",
            "advertised.listeners="
            + ",".join(f"{name}://{address}" for name, address in advertised.items()),
            "listener.security.protocol.map="
            + each(lambda name: f"{name}:{PROTOCOLS.get(name, 'PLAINTEXT')}"),
            f"log.dirs={self.directory / 'logs'}",
            "auto.create.topics.enable=false",
            "num.partitions=4",
            "offsets.topic.replication.factor=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            f"sasl.enabled.mechanisms={','.join(mechanisms)}",
            "ssl.keystore.type=PEM",
            f"ssl.keystore.location={self.authority.keystore('server')}",
            "ssl.truststore.type=PEM",
            f"ssl.truststore.location={self.authority.certificate}",
            "listener.name.mtls.ssl.client.auth=required",
        ]
        lines += [
            f"listener.name.{listener}.{mechanism}.sasl.jaas.config={module}"
            for listener in ("sasl", "sasltls")
            for mechanism, module in jaas.items()
        ]
        (self.directory / "server.properties").write_text("\n".join(lines) + "\n")

    def start(self):
        with open(self.log, "a") as log:
            self.child = subprocess.Popen(
                self.command("kafka.Kafka", self.directory / "server.properties"),
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )
        deadline = time.monotonic() + START_TIME_MAX
        while not self.answers():
            assert self.child.poll() is None, f"Kafka ended: {self.log.read_text()[-4000:]}"
            assert time.monotonic() < deadline, f"no Kafka: {self.log.read_text()[-4000:]}"
            time.sleep(0.1)

    def answers(self):
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.ports["PLAIN"])).close()
            return True
        return False

    def kill(self):
        """kill -9."""
        self.child.kill()
        self.child.wait()

    def address(self, listener="PLAIN"):
        return f"127.0.0.1:{self.ports[listener]}"

    def create(self, topic, partitions=4, **config):
        config = {name.replace("_", "."): str(value) for name, value in config.items()}
        admin = AdminClient({"bootstrap.servers": self.address()})
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
        admin.create_topics([new])[topic].result(60)
        return topic

    def read(self, topic, partitions=4):
        """Everything in the topic, by partition, as confluent-kafka reads it."""
        consumer = Consumer({
            "bootstrap.servers": self.address(),
            "group.id": f"tests-{os.getpid()}-{topic}",
            "enable.auto.commit": False,
            "check.crcs": True,
        })  # fmt: skip
        found = {}
        for partition in range(partitions):
            start, end = ends_of(consumer, TopicPartition(topic, partition))
            consumer.assign([TopicPartition(topic, partition, start)])
            messages = found[partition] = []
            while len(messages) < end - start:
                some = consumer.consume(min(10_000, end - start - len(messages)), 60)
                assert some, f"{topic}: nothing after {len(messages)} of {end - start}"
                for message in some:
                    assert message.error() is None, message.error()
                    messages.append(message)
        consumer.close()
        return found


def ends_of(consumer, partition):
    """The first and the next offset. Kafka accepts connections ahead of leading its partitions."""
    deadline = time.monotonic() + START_TIME_MAX
    while True:
        try:
            return consumer.get_watermark_offsets(partition, 60)
        except KafkaException as error:
            is_early = error.args[0].code() == KafkaError.NOT_LEADER_FOR_PARTITION
            if not is_early or time.monotonic() > deadline:
                raise
        time.sleep(0.1)
