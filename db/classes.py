"""Device classes that requests may mean: by a selector, or where they give none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, delete, exists, make_url, select, update

from backends.environment import DeviceClass, resolve
from backends.errors import AmbiguousDevice, GemmtuneError, UnknownDevice
from db import models
from db.liveness import alive, alive_on
from db.values import table

_class = table(models.DeviceClass)
_worker = table(models.Worker)

_best = table(models.Best)
_NOTHING = (
    "no device is known yet: tune a problem on this machine (gemmtune tune), import a file of results "
    "(gemmtune import), or start a worker (gemmtune worker)"
)
_DRIVERS = {"sqlite": "sqlite://", "postgresql": "postgresql+psycopg://"}


class ClassInUse(GemmtuneError):
    """The device class has a live worker."""


class NoDefaultDevice(AmbiguousDevice):
    """The request names no device, and no single class can be meant. `classes` lists those that can; `others`
    are known, but have neither a worker nor results."""

    def __init__(self, classes: Iterable[DeviceClass], others: Iterable[DeviceClass] = ()) -> None:
        names, known = [str(each) for each in classes], [str(each) for each in others]
        super().__init__("", names)
        several = f"{len(names)} classes may be meant ({', '.join(names)})"
        listed = several if names else "no class has a worker or results"
        if known and not names:
            listed += f" (files that were imported name {', '.join(known)})"
        example = (names or known or ["cuda:sm_90"])[0]
        self.args = (
            f"the request names no device, and {listed}; name one, as device={example} in a request or "
            f"--device {example} on the command line",
        )


@dataclass(frozen=True)
class Classes:
    """The device classes of a database. Only workers, and commands that measure, register one; `others` are
    known from imported rows alone, so that no file can make a selector ambiguous."""

    registered: tuple[DeviceClass, ...] = ()
    others: tuple[DeviceClass, ...] = ()
    live: tuple[DeviceClass, ...] = ()
    measured: tuple[DeviceClass, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[tuple[Any, ...]]) -> Classes:
        """From the rows of classes_sql()."""
        found = [(DeviceClass.parse(row[0]), bool(row[1]), bool(row[2]), bool(row[3])) for row in rows]
        return cls(
            tuple(name for name, registered, _, _ in found if registered),
            tuple(name for name, registered, _, _ in found if not registered),
            tuple(name for name, registered, live, _ in found if registered and live),
            tuple(name for name, _, _, measured in found if measured),
        )

    def resolve(self, selector: str | None) -> DeviceClass:
        """The class that a selector names: a registered one, else one of the others. None: the only class
        with a live worker; if none lives, the only one with measured rows. Raises UnknownDevice,
        AmbiguousDevice."""
        if selector is None:
            if not (self.registered or self.others):
                nothing = UnknownDevice("", [])
                nothing.args = (_NOTHING,)
                raise nothing
            meant = self.live or self.measured
            if len(meant) != 1:
                raise NoDefaultDevice(meant, self.others)
            return meant[0]
        try:
            return resolve(selector, self.registered)
        except UnknownDevice:
            if not self.others:
                raise
        try:
            return resolve(selector, self.others)
        except UnknownDevice as error:
            everything = sorted({*self.registered, *self.others})
            raise UnknownDevice(selector, [str(name) for name in everything]) from error

    def workable(self, selector: str | None) -> DeviceClass:
        """As resolve(), among the registered classes: no worker of another one would ever take a job."""
        measured = tuple(each for each in self.measured if each in self.registered)
        return Classes(self.registered, (), self.live, measured).resolve(selector)


def _query(dialect: str) -> Select[Any]:
    """id, whether it is registered, whether a worker lives, whether it has best rows."""
    live = exists().where(_worker.c.device_class_id == _class.c.id, alive_on(dialect))
    measured = exists().where(_best.c.device_class_id == _class.c.id)
    return select(_class.c.id, _class.c.registered, live, measured).order_by(_class.c.id)


def classes_sql(dialect: str) -> str:
    """The statement behind classes() as text without parameters, for sqlite or postgresql."""
    made = make_url(_DRIVERS[dialect]).get_dialect()()
    return str(_query(dialect).compile(dialect=made, compile_kwargs={"literal_binds": True}))


def classes(connection: Connection) -> Classes:
    """The database's device classes."""
    return Classes.of(tuple(row) for row in connection.execute(_query(connection.dialect.name)))


def forget(connection: Connection, class_id: str) -> bool:
    """Makes a class unregistered, as if no worker had ever registered it; removes it if no row refers to it.
    What was measured on it stays, and a worker registers it again. False for an unknown class. Raises
    ClassInUse."""
    live = exists().where(_worker.c.device_class_id == class_id, alive(connection))
    if connection.execute(select(live)).scalar():
        raise ClassInUse(f"{class_id} has a worker; stop it first")
    found = connection.execute(update(_class).where(_class.c.id == class_id).values(registered=False))
    referring = (models.Environment, models.Session, models.Verdict, models.Best, models.Claim,
                 models.Tuning, models.Job, models.Worker, models.OutlierDevice)  # fmt: skip
    used = [exists().where(table(kind).c.device_class_id == class_id) for kind in referring]
    connection.execute(delete(_class).where(_class.c.id == class_id, *(~each for each in used)))
    return found.rowcount == 1
