"""The interface as a page for people, from its OpenAPI description; it loads nothing from anywhere."""

from html import escape

_STYLE = "body{font:16px/1.5 system-ui;max-width:50rem;margin:2rem auto;padding:0 1rem}code{background:#8882}"
_STYLE += "td,th{text-align:start;vertical-align:top;padding:.2rem .8rem .2rem 0}"


def docs_page(description: dict) -> str:
    """HTML of an OpenAPI description: each path, what it does, and the fields of its body."""
    title = escape(f"{description['info']['title']} {description['info']['version']}")
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"]
    parts.append(f"<h1>{title}</h1><p>For programs: <a href=/openapi.json>openapi.json</a></p>")
    for path, methods in description["paths"].items():
        for method, one in methods.items():
            parts.append(f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(one['description'])}</p>")
            content = one.get("requestBody", {}).get("content", {}).get("application/json", {})
            name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
            if name:
                parts.append(_fields(description["components"]["schemas"][name]))
    return "".join(parts)


def _fields(schema):
    rows = []
    for name, field in schema["properties"].items():
        choices = field.get("enum") or [one for each in field.get("anyOf", ()) for one in each.get("enum", ())]
        told = [field.get("description", ""), ", ".join(map(str, choices))]
        told += ["required"] if name in schema.get("required", ()) else [f"default: {field.get('default')}"]
        rows.append(f"<tr><th><code>{escape(name)}</code><td>{escape('; '.join(filter(None, told)))}")
    return f"<table>{''.join(rows)}</table>"
