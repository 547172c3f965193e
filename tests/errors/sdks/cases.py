"""All cases, by SDK."""

from tests.errors.sdks.cloud_cases import CLOUD_CASES
from tests.errors.sdks.data_cases import DATA_CASES
from tests.errors.sdks.http_cases import http_cases
from tests.errors.sdks.model import Case
from tests.errors.sdks.service_cases import SERVICE_CASES


def cases() -> list[Case]:
    found = [*http_cases(), *CLOUD_CASES, *DATA_CASES, *SERVICE_CASES]
    order = list(dict.fromkeys(case.package for case in found))
    return sorted(found, key=lambda case: order.index(case.package))
