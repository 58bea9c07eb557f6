"""The content-security policy of pages: their own style and script, and nothing else."""

import base64
import hashlib


def content_policy(script: str, style: str, *more: str) -> str:
    """Return a policy that admits one script and one style by their hashes, and `more`."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_digest(script)}'",
            f"style-src '{_digest(style)}'",
            *more,
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
