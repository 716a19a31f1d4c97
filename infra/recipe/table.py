"""Base of a recipe's tables, and common values: numbers, temperatures, the name of a run, what is named."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from headrace.schemas.topics import check_name

MOST_NUMBER = 2**32
"""Largest value of a setting without its own bound: a century in seconds, near the longest wait of the system."""
MOST_PROCESSES = 4096
"""Most processes of one kind on one machine."""
MOST_PARTITIONS = 100_000
"""librdkafka's limit for a topic."""
LEAST_TEMPERATURE, MOST_TEMPERATURE = 0.01, 100
"""Lowest sampling temperature: with a lower one, scaled logits may overflow."""


class Settings(BaseModel):
    """Base of every table of a recipe: frozen, no unknown key. `recipe_keys` reads the text under a field."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _check_number(cls, given: Any, parse: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        """Refuse invalid numbers: pydantic accepts true as 1, and integers of any size."""
        if cls.model_fields[str(info.field_name)].annotation not in (int, float):
            return parse(given)
        if isinstance(given, bool):
            raise ValueError("must be a number, not true or false")  # noqa: TRY004 - pydantic names the key for a ValueError alone
        if (found := parse(given)) > MOST_NUMBER:
            raise ValueError(f"must be {MOST_NUMBER} or less")
        return found


def _refuse_near_zero(temperature: float) -> float:
    if 0 < temperature < LEAST_TEMPERATURE:
        raise ValueError(f"must be 0 or from {LEAST_TEMPERATURE} to {MOST_TEMPERATURE}")
    return temperature


Temperature: TypeAlias = Annotated[float, Field(ge=0, le=MOST_TEMPERATURE), AfterValidator(_refuse_near_zero)]
"""A sampling temperature, or 0 for the likeliest token."""
RunName: TypeAlias = Annotated[str, AfterValidator(lambda name: check_name("run", name))]
"""A name that can be part of topic names."""


class Named(BaseModel):
    """What a recipe names, with its settings: `{ use = "max_staleness", limit = 2 }`, or only the name."""

    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)

    use: str
    """Name of a shipped one, or `package.module:Name`."""

    @model_validator(mode="before")
    @classmethod
    def _parse_bare_name(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value

    @property
    def settings(self) -> dict[str, Any]:
        """All keys beside `use`."""
        return dict(self.model_extra or {})

    def describe(self) -> str:
        """Return name and settings in one line: `pods m=4`."""
        return " ".join([self.use, *(f"{name}={value}" for name, value in self.settings.items())])
