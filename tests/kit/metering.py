"""A metered price for tests: prompt and completion tokens, read from a JSON body and from a stream."""

from typing import Any

from tollway.registry.metering import Metering, read_metering

TOKENS: dict[str, Any] = {
    "base": "0.0001",
    "absent": "max",
    "show": False,
    "parts": [
        {
            "unit": "prompt token",
            "unitPrice": "0.000002",
            "per": 1,
            "quantity": {"json": "/usage/prompt_tokens", "sse": "/usage/prompt_tokens"},
        },
        {
            "unit": "completion token",
            "unitPrice": "0.000008",
            "per": 1,
            "quantity": {"json": "/usage/completion_tokens", "sse": "/usage/completion_tokens"},
        },
    ],
}
"""The JSON form as `write_metering` writes it."""
TOKENS_IN_WORDS = "0.0001 per call, 0.002 per 1,000 prompt tokens, 0.008 per 1,000 completion tokens"


LONGEST: dict[str, Any] = {
    **TOKENS,
    "parts": [
        {
            "unit": "\U00010400" * 40,
            "unitPrice": "9" * 18 + "." + "9" * 18,
            "per": 10**9,
            "quantity": {"json": "/" + "\U00010400" * 255, "sse": "/" + "\U00010400" * 255},
        }
    ]
    * 8,
}
"""The longest formula that a listing may have."""


def sample_metering(**changes: Any) -> Metering:
    """`changes`: members of the JSON form."""
    return read_metering({**TOKENS, **changes})
