"""Turn the result of a call of an MCP server into the content and the artifact of a tool message."""

from __future__ import annotations

from typing import Any

from ...adapters.fields import get_text, to_builtins
from ..tool_results import as_content


def content_of_result(result: Any) -> tuple[Any, dict[str, Any] | None]:
    """Return what the model sees of a result, and what it does not see.

    Args:
        result: the SDK's `CallToolResult`.

    Returns:
        Content: a text, or content blocks if there are images. Artifact: a dict with `structured_content` if the
        server has sent any, and with `content`, the parts that models cannot read, if there are such; else None.
    """
    blocks: list[dict[str, Any]] = []
    unread: list[Any] = []
    for part in result.content:
        block = _block(part)
        if block is None:
            unread.append(to_builtins(part))
            kind = get_text(part, "mime_type") or get_text(getattr(part, "resource", None), "mime_type") or part.type
            block = {"type": "text", "text": f"[{kind}, which is not shown to you]"}
        blocks.append(block)
    artifact: dict[str, Any] = {}
    if result.structured_content is not None:
        artifact["structured_content"] = result.structured_content
    if unread:
        artifact["content"] = unread
    content: Any = blocks
    if all(block["type"] == "text" for block in blocks):
        content = "\n".join(block["text"] for block in blocks)
        if not blocks and result.structured_content is not None:
            content = as_content(result.structured_content)
    return content, artifact or None


def text_of_failure(result: Any) -> str:
    """Return the text with which a server explains why a call has failed."""
    return "\n".join(part.text for part in result.content if part.type == "text") or "the server gives no reason"


def _block(part: Any) -> dict[str, Any] | None:
    """Return a part as a content block that models can read; None if they cannot."""
    if part.type == "text":
        return {"type": "text", "text": part.text}
    if part.type == "image":
        return _image(part.mime_type, part.data)
    if part.type == "resource_link":
        described = f": {part.description}" if part.description else ""
        return {"type": "text", "text": f"{part.name} ({part.uri}){described}"}
    if part.type != "resource":
        return None
    if (text := getattr(part.resource, "text", None)) is not None:
        return {"type": "text", "text": text}
    kind = part.resource.mime_type or ""
    return _image(kind, part.resource.blob) if kind.startswith("image/") else None


def _image(kind: str, data: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}
