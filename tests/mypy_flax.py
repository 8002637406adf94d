"""Tells mypy of the method `replace` that flax.struct.dataclass gives to a class."""

from mypy.nodes import ARG_STAR2, Argument, Var
from mypy.plugin import ClassDefContext, Plugin
from mypy.plugins.common import add_method_to_class
from mypy.plugins.dataclasses import dataclass_tag_callback
from mypy.types import AnyType, TypeOfAny
from mypy.typevars import fill_typevars

DECORATOR = "flax.struct.dataclass"


def with_replace(context: ClassDefContext) -> None:
  dataclass_tag_callback(context)
  anything = AnyType(TypeOfAny.explicit)
  arguments = [Argument(Var("updates", anything), anything, None, ARG_STAR2)]
  add_method_to_class(context.api, context.cls, "replace", arguments,
                      fill_typevars(context.cls.info))


class FlaxPlugin(Plugin):
  def get_class_decorator_hook(self, fullname: str):
    return with_replace if fullname == DECORATOR else None


def plugin(version: str):
  del version
  return FlaxPlugin
