"""Query of a page: its parameters, declared once for the page, its links, its form and the API."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from treehammer.collectors.record.metric_catalogue import CATALOGUE, MAX_TEXT
from treehammer.errors import ConfigError, suggest_word
from treehammer.web.addresses import DRAWING
from treehammer.web.arranged_table import is_arrangement
from treehammer.web.display_formats import days_until, today

if TYPE_CHECKING:
    # Reports draw figures without the service.
    from starlette.requests import Request

#: Known values listed for an unknown one.
MAX_SUGGESTED = 20
_NO_NUL = "^[^\\u0000]*$"
#: Type of a validation error whose message states the allowed values.
_REFUSED = "refused"
#: Parameters of every page beside its own.
_COMMON = (DRAWING, "format", "table")


def _refuse(reason: str, hint: str = "") -> PydanticCustomError:
    return PydanticCustomError(_REFUSED, "{reason}", {"reason": reason, "hint": hint})


@dataclass(frozen=True)
class OneOf:
    """The values that a parameter can have; numbers are written as in JSON."""

    values: Sequence[str | int]

    def __get_pydantic_core_schema__(self, _source: object, _handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._choose)

    def __get_pydantic_json_schema__(self, _schema: object, _handler: object) -> dict[str, Any]:
        integer = {"type": "integer"} if isinstance(self.values[0], int) else {}
        return {**integer, "enum": list(self.values)}

    def _choose(self, text: object) -> str | int:
        values = {str(value): value for value in self.values}
        if str(text) not in values:
            words = ", ".join(filter(None, values))
            raise _refuse(f"must be one of {words}", suggest_word(str(text), values).strip())
        return values[str(text)]


def _read_day(value: object) -> object:
    try:
        return date.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise _refuse("must be a date such as 2026-03-01") from None


def _read_count(value: object) -> object:
    # No sign and no leading zeros, as in JSON.
    if isinstance(value, str) and not re.fullmatch(r"[1-9]\d{0,14}", value, re.ASCII):
        raise _refuse("must be a positive number")
    return value


def _text_field(max_length: int) -> Any:
    schema: dict[str, Any] = {"pattern": _NO_NUL}
    return Field(min_length=1, max_length=max_length, json_schema_extra=schema)


#: Text that may be stored.
Text = Annotated[str, _text_field(MAX_TEXT)]
#: A part of the path may be any text: the database knows the names.
PathText = Annotated[
    str,
    WithJsonSchema({"type": "string", "pattern": _NO_NUL, "minLength": 1, "maxLength": MAX_TEXT}),
]
#: A condition COLUMN=VALUE, or with another operator.
ConditionText = Annotated[
    str, _text_field(MAX_TEXT + max(len(f"{metric.name}!=") for metric in CATALOGUE))
]
Conditions = tuple[ConditionText, ...]
#: Field of the campaigns whose measurements are selected.
CAMPAIGNS: Any = Field(
    (), alias="campaign", description="Only measurements of this campaign; may be repeated."
)
#: Ends the description of conditions.
ALTERNATIVES = "several on one column match any of them"
Day = Annotated[date, BeforeValidator(_read_day)]
PageNumber = Annotated[int, Field(ge=1, le=1_000_000), BeforeValidator(_read_count)]
#: Parameters whose blank value differs from a missing one.
TextOrBlank = Text | Literal[""]
DayOrBlank = Day | Literal[""]


class PageQuery(BaseModel):
    """Parameters of a page, and the variable parts of its path.

    A field is a parameter, with its alias as the name in addresses. Fields that are excluded from
    serialization are none: they hold what the page found for the parameters.
    """

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    #: Other parameters that the page accepts; None for any, since links from elsewhere may have some.
    other_parameters: ClassVar[Collection[str] | None] = None
    #: Columns that select measurements: parameters whose values are collected in the field ``filters``.
    filter_columns: ClassVar[Collection[str]] = ()

    @classmethod
    def parse(cls, request: Request, *, strict: bool = False) -> Self:
        """Parse the address of a page; invalid parameters are refused.

        With ``strict``, blank, repeated and unknown ones are, too, as by the API, where a misspelt name
        would change the result. Forms send blank ones.
        """
        if strict or cls.other_parameters is not None:
            cls._check_names(request, strict=strict)
        values = cls._read_values(request, strict=strict)
        return cls._validate(values, drops_blank=not strict)

    @classmethod
    def _check_names(cls, request: Request, *, strict: bool) -> None:
        parameters, is_repeatable = request.query_params, _list_names(cls)
        names = [name for name in is_repeatable if name not in request.path_params]
        common: set[str] = set()
        if not strict:
            names += cls.other_parameters or ()
            common = {*_COMMON, *filter(is_arrangement, parameters)}
        for name in parameters:
            if name not in {*names, *cls.filter_columns, *common}:
                raise cls._build_unknown_name_error(name, names)
            if strict and not is_repeatable.get(name, True) and len(parameters.getlist(name)) > 1:
                raise ConfigError(f"{name} may not be repeated")

    @classmethod
    def _build_unknown_name_error(cls, name: str, names: Sequence[str]) -> ConfigError:
        hint = suggest_word(name, (*names, *cls.filter_columns))
        further = ["any column of the catalogue"] if cls.filter_columns else []
        hint += f"Known parameters: {', '.join([*names, *further]) or 'none'}."
        return ConfigError(f"unknown parameter {name[:40]!r}", hint=hint)

    @classmethod
    def _read_values(cls, request: Request, *, strict: bool) -> dict[str, Any]:
        parameters = request.query_params
        values: dict[str, Any] = {}
        for name, is_repeatable in _list_names(cls).items():
            if name in request.path_params:
                values[name] = request.path_params[name]
            elif name in parameters:
                texts = [text for text in parameters.getlist(name) if strict or text.strip()]
                values[name] = texts if is_repeatable else parameters[name]
        if cls.filter_columns:
            values["filters"] = cls._read_filters(parameters.multi_items(), strict=strict)
        return values

    @classmethod
    def _read_filters(
        cls, items: Iterable[tuple[str, str]], *, strict: bool
    ) -> list[tuple[str, str]]:
        columns = [item for item in items if item[0] in cls.filter_columns]
        return columns if strict else [item for item in columns if item[1]]

    @classmethod
    def _validate(cls, values: Mapping[str, Any], *, drops_blank: bool) -> Self:
        """Validate the values, perhaps without blank ones that are invalid."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            refused = {str(item["loc"][0]) for item in error.errors()} & values.keys()
            dropped = {name for name in refused if values[name] == ""}
            if not (dropped and drops_blank):
                raise cls._explain(error, values) from None
            remaining = {name: value for name, value in values.items() if name not in dropped}
            return cls._validate(remaining, drops_blank=drops_blank)

    @classmethod
    def _explain(cls, error: ValidationError, values: Mapping[str, Any]) -> ConfigError:
        """Describe the first mistake of an address."""
        first = error.errors(include_url=False)[0]
        name, *place = first["loc"]
        if first["type"] == "missing":
            return ConfigError(f"{name} is missing", hint=f"Add the parameter {name}=NAME.")
        text = str(first["input"])[:40]
        if first["type"] == _REFUSED:
            context = first["ctx"]
            return ConfigError(f"{name} {context['reason']}, not {text!r}", hint=context["hint"])
        if name == "filters":
            name = values["filters"][place[0]][0]
        [description] = (
            parameter["description"]
            for parameter in cls.describe_parameters()
            if parameter["name"] == name
        )
        return ConfigError(f"{name} cannot be {text!r}", hint=description)

    def require_choice(self, name: str, choices: Iterable[str]) -> None:
        """Refuse a value of a parameter that the database does not know."""
        value, known_values = getattr(self, name), sorted({*choices})
        if value and value not in known_values:
            words = ", ".join(known_values[:MAX_SUGGESTED])
            hint = f"{suggest_word(value, known_values)}Known: {words or 'none'}."
            raise ConfigError(f"{name} cannot be {value[:40]!r} here", hint=hint)

    def list_parameters(self) -> list[tuple[str, str]]:
        """List all parameters with their values, for addresses that depend on no default."""
        values = self.model_dump(mode="json", by_alias=True)
        return [
            (name, str(item))
            for name, value in values.items()
            for item in (value if isinstance(value, list) else [value])
        ]

    def list_inputs(self, **choices: Mapping[str, str] | Iterable[str] | None) -> list[FormInput]:
        """List inputs of the page's form, without those that offer a single value.

        Args:
            choices: by field the values, or texts by value; nothing for the declared values, None for
                a day. Of a parameter that may be missing, "all" is a further choice.
        """
        inputs = []
        for name, values in choices.items():
            field, value = type(self).model_fields[name], str(getattr(self, name))
            texts = None if values is None else _list_choices(field, values)
            title = field.title or name.capitalize()
            inputs.append(FormInput(field.alias or name, title, value, texts))
        return [item for item in inputs if item.is_useful]

    @classmethod
    def describe_parameters(cls, path: str = "") -> list[dict[str, Any]]:
        """Describe the parameters in OpenAPI; ``path`` names those that are parts of it in braces."""
        document = cls.model_json_schema()
        parameters = [
            _describe_parameter(
                name,
                document["properties"][name],
                is_required=name in document.get("required", ()),
                in_path=f"{{{name}}}" in path,
            )
            for name in _list_names(cls)
        ]
        filters = TypeAdapter(tuple[Text, ...]).json_schema()
        return parameters + [
            _describe_parameter(
                name, {**filters, "description": f"Only of this {name}; of several any one."}
            )
            for name in cls.filter_columns
        ]


def _describe_parameter(
    name: str, schema: Mapping[str, Any], *, is_required: bool = False, in_path: bool = False
) -> dict[str, Any]:
    return {
        "name": name,
        "in": "path" if in_path else "query",
        "required": is_required,
        "description": schema["description"],
        "schema": {
            keyword: value
            for keyword, value in schema.items()
            if keyword not in ("title", "default", "description")
        },
    }


def _list_choices(field: FieldInfo, values: Mapping[str, str] | Iterable[str]) -> Mapping[str, str]:
    """List texts by value; see :meth:`PageQuery.list_inputs`."""
    if not isinstance(values, Mapping):
        declared = [item for item in field.metadata if isinstance(item, OneOf)]
        options = [*values] or [str(text) for item in declared for text in item.values]
        values = {text: text for text in options}
    return {"": "all", **values} if field.default == "" else values


@cache
def _list_names(model: type[PageQuery]) -> Mapping[str, bool]:
    """Return the names of the parameters, and whether each may be repeated."""
    return {
        field.alias or name: get_origin(field.annotation) is tuple
        for name, field in model.model_fields.items()
        if not field.exclude
    }


@dataclass(frozen=True)
class FormInput:
    """An input of a form: one of the choices, texts by value, or without any a day or text."""

    name: str
    title: str
    value: str
    choices: Mapping[str, str] | None = None
    is_text: bool = False
    example: str = ""

    @property
    def is_useful(self) -> bool:
        """Whether it offers several values, or a chosen one that can be given up."""
        if self.choices is None:
            return True
        values = self.choices.keys() - {""}
        return len(values) > 1 or (self.value in values and "" in self.choices)


class ListQuery(PageQuery):
    """A list shown by pages."""

    page: PageNumber = Field(1, description="Page number.")


class WindowQuery(PageQuery):
    """A window of days. Pages declare the field ``days`` with their choices."""

    to: Day = Field(default_factory=today, description="Last day (UTC), by default today.")
    days: int = Field(description="Number of days.")

    @property
    def window(self) -> list[date]:
        """The days, of which the calendar may have fewer."""
        return days_until(self.to, self.days)
