"""The one error of this package, and how it shows values that came from outside."""

import json

_SHOWN_CHARACTERS = 80


class CDIError(ValueError):
    """A CDI spec, name or file that breaks a rule.

    `field` is the path of the offending value in the JSON form, such as `devices[0].containerEdits.env[2]`;
    `value` is that value, quoted and cut in the message; `allowed` says what would have been accepted.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        super().__init__(f"{field}: {shown(value)}: {allowed}")


def shown(value: object) -> str:
    """Return `value` quoted for one line of text: control characters escaped, what is long cut."""
    if isinstance(value, str):
        cut = ascii(value[:_SHOWN_CHARACTERS])
        return cut if len(value) <= _SHOWN_CHARACTERS else f"{cut}... ({len(value)} characters)"
    if isinstance(value, dict | list | tuple):
        kind = "an object" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    # Python refuses to print integers beyond sys.get_int_max_str_digits().
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return json.dumps(value, default=ascii)[:_SHOWN_CHARACTERS]
