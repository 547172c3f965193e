"""Brokers: by a call to a closed port, or as the SDK itself builds the error."""

from __future__ import annotations

import asyncio

from tests.errors.more_sdks import clients
from tests.errors.more_sdks.acts import Situations, answers, of
from tests.errors.sdks.model import Act, constructed
from tests.errors.sdks.service import Service


def amqp(name: str, *args: object) -> Act:
    return constructed(f"aiormq.exceptions.{name}", *args)


def aio_pika(service: Service) -> object:
    port = service.refused.rpartition(":")[2]
    return asyncio.run(of("aio_pika.connect")(f"amqp://guest:guest@127.0.0.1:{port}/"))


def nacked(_: Service) -> object:
    return of("aiormq.exceptions.DeliveryError")(None, of("pamqp.commands.Basic.Nack")(1))


def returned(_: Service) -> object:
    back = of("pamqp.commands.Basic.Return")(312, "NO_ROUTE", "", "nowhere")
    message = of("aiormq.abc.DeliveredMessage")(back, None, b"", None)
    return of("aiormq.exceptions.PublishError")(message, back)


AIO_PIKA: Situations = {
    "connection refused": aio_pika,
    "login refused": amqp("ProbableAuthenticationError", "ACCESS_REFUSED - Login was refused"),
    "403, no access to a queue": amqp("ChannelAccessRefused", "ACCESS_REFUSED - access to queue 'q' refused"),
    "404, no such queue": amqp("ChannelNotFoundEntity", "NOT_FOUND - no queue 'q' in vhost '/'"),
    "405, an exclusive queue of another connection": amqp(
        "ChannelLockedResource", "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q'"
    ),
    "406, declared with other arguments": amqp(
        "ChannelPreconditionFailed", "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'q'"
    ),
    "320, the broker shuts down": amqp("ConnectionClosed", 320, "CONNECTION_FORCED - broker forced closing"),
    "541, internal error": amqp("ConnectionInternalError", "INTERNAL_ERROR"),
    "a publish was nacked": nacked,
    "a mandatory message was returned": returned,
    "the broker speaks another protocol": amqp("IncompatibleProtocolError", "x"),
}


def aiokafka_refused(service: Service) -> object:
    async def start() -> None:
        made = of("aiokafka.AIOKafkaProducer")(bootstrap_servers=service.refused.removeprefix("http://"))
        try:
            await made.start()
        finally:
            await made.stop()

    return asyncio.run(start())


AIOKAFKA: Situations = {
    "connection refused": aiokafka_refused,
    **{
        situation: constructed(f"aiokafka.errors.{name}")
        for situation, name in {
            "NOT_LEADER_OR_FOLLOWER": "NotLeaderForPartitionError",
            "COORDINATOR_LOAD_IN_PROGRESS": "GroupLoadInProgressError",
            "NOT_ENOUGH_REPLICAS": "NotEnoughReplicasError",
            "UNKNOWN_TOPIC_OR_PARTITION": "UnknownTopicOrPartitionError",
            "REQUEST_TIMED_OUT": "RequestTimedOutError",
            "TOPIC_AUTHORIZATION_FAILED": "TopicAuthorizationFailedError",
            "SASL_AUTHENTICATION_FAILED": "SaslAuthenticationFailed",
            "MESSAGE_TOO_LARGE": "MessageSizeTooLargeError",
            "TOPIC_ALREADY_EXISTS": "TopicAlreadyExistsError",
            "INVALID_TOPIC_EXCEPTION": "InvalidTopicError",
            "UNSUPPORTED_VERSION": "UnsupportedVersionError",
            "the client's own timeout": "KafkaTimeoutError",
        }.items()
    },
}


def mqtt_refused(service: Service) -> object:
    async def enter() -> None:
        host, _, port = service.refused.removeprefix("http://").partition(":")
        async with of("aiomqtt.Client")(host, int(port)):
            pass

    return asyncio.run(enter())


def connack(code: int | str) -> Act:
    """A CONNACK: a number of MQTT 3.1.1, or the name of a reason code of MQTT 5."""

    def act(_: Service) -> object:
        if isinstance(code, int):
            reason = of("paho.mqtt.client.convert_connack_rc_to_reason_code")(code)
        else:
            reason = of("paho.mqtt.reasoncodes.ReasonCode")(
                of("paho.mqtt.packettypes.PacketTypes").CONNACK, code
            )
        return of("aiomqtt.exceptions.MqttConnectError")(reason)

    return act


AIOMQTT: Situations = {
    "connection refused": mqtt_refused,
    "CONNACK 4, bad user name or password (3.1.1)": connack(4),
    "CONNACK 5, not authorized (3.1.1)": connack(5),
    "CONNACK 3, server unavailable (3.1.1)": connack(3),
    "0x87, not authorized": connack("Not authorized"),
    "0x88, server unavailable": connack("Server unavailable"),
    "0x89, server busy": connack("Server busy"),
    "0x95, packet too large": connack("Packet too large"),
    "publish without a connection": constructed(
        "aiomqtt.exceptions.MqttCodeError", 4, "Could not publish message"
    ),
}

PULSAR: Situations = {
    name: constructed(f"_pulsar.{name}", f"Pulsar error: {name}")
    for name in (
        *("Timeout", "ConnectError", "NotConnected", "AuthenticationError", "AuthorizationError"),
        *("TopicNotFound", "TooManyLookupRequestException", "ServiceUnitNotReady", "ProducerQueueIsFull"),
        *("ProducerBusy", "MessageTooBig", "InvalidTopicName", "InvalidConfiguration"),
        "ProducerBlockedQuotaExceededException",
    )
}


def kafka(name: str) -> Act:
    def act(_: Service) -> object:
        number = getattr(of("confluent_kafka.KafkaError"), name)
        return of("confluent_kafka.KafkaException")(of("confluent_kafka.KafkaError")(number, "x"))

    return act


registry = answers(clients.schema_registry)
CONFLUENT: Situations = {
    "its SerializationError": constructed("confluent_kafka.serialization.SerializationError", "x"),
    "_ALL_BROKERS_DOWN": kafka("_ALL_BROKERS_DOWN"),
    "_SSL, a certificate that fails": kafka("_SSL"),
    "_FENCED": kafka("_FENCED"),
    "a schema registry's 503": registry(503, {"error_code": 50303, "message": "x"}),
    "a schema registry's 409, incompatible schema": registry(409, {"error_code": 409, "message": "x"}),
    "a schema registry's 404, no such subject": registry(404, {"error_code": 40401, "message": "x"}),
}
