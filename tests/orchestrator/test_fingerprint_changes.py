"""One change at a time, in many kinds of function, closure, object and argument: each gives another fingerprint."""

import decimal
import os
import re
import sys
import types

import pytest

from spanwise.orchestrator.errors import Unfingerprintable
from spanwise.orchestrator.fingerprint import of_function

HEAD = """
import collections, collections.abc, contextlib, dataclasses, datetime as dt, decimal, enum, fractions, functools, itertools
import math, operator, pathlib, re, string, types, typing, zoneinfo
import numpy as np, pyarrow as pa, pyarrow.compute as pc, polars as pl, pandas as pd, pydantic, pydantic.dataclasses
from spanwise.pipelines import input as inputs
"""

#: what `g` does or holds; N is 1 before the change and 2 after it
CODE = {
    "a constant": "def g(x): return x * N",
    "a constant in a tuple": "def g(x): return (x, (N, 5))",
    "a constant in a set": "def g(x): return x in {N, 5}",
    "an operator": "def g(x): return x [+, -][N] 2",
    "an inner function": "def g(x):\n    def inner(y): return y * N\n    return inner(x)",
    "a lambda": "g = lambda x: x * N",
    "a comprehension": "def g(x): return [y * N for y in x]",
    "a generator": "def g(x): yield x * N",
    "an async function": "async def g(x): return x * N",
    "a text in an f-string": "def g(x): return f'{x}N'",
    "a format": "def g(x): return f'{x:>N}'",
    "a branch": "def g(x):\n    if x > N: return 1\n    return 0",
    "a match": "def g(x):\n    match x:\n        case N: return 1\n    return 0",
    "an except": "def g(x):\n    try: return x.y\n    except [KeyError, ValueError][N]: return 1",
    "an annotation of a dataclass": "@dataclasses.dataclass\nclass D:\n    a: [int, float][N]\ndef g(x): return D(x)",
    "a default": "def g(x, y=N): return x * y",
    "a keyword default": "def g(x, *, y=N): return x * y",
    "a callee": "def inner(x): return x + N\ndef g(x): return inner(x)",
    "a callee's callee": "def one(x): return x + N\ndef two(x): return one(x)\ndef g(x): return two(x)",
    "a closure": "def make(n):\n    def f(x): return x * n\n    return f\ng = make(N)",
    "a closure's function": "def make(h):\n    def f(x): return h(x)\n    return f\ng = make(lambda x: x * N)",
    "a decorator": "def by(n):\n    def wrap(f):\n        @functools.wraps(f)\n        def h(x): return f(x) * n\n        return h\n    return wrap\n@by(N)\ndef g(x): return x",
    "a class attribute": "class A:\n    n = N\ndef g(x): return A.n",
    "a method": "class A:\n    def m(self, x): return x * N\ndef g(x): return A().m(x)",
    "a static method": "class A:\n    @staticmethod\n    def m(x): return x * N\ndef g(x): return A.m(x)",
    "a class method": "class A:\n    @classmethod\n    def m(cls, x): return x * N\ndef g(x): return A.m(x)",
    "a property": "class A:\n    @property\n    def p(self): return N\ndef g(x): return A().p",
    "a cached property": "class A:\n    @functools.cached_property\n    def p(self): return N\ndef g(x): return A().p",
    "a base class": "class B:\n    n = N\nclass A(B): pass\ndef g(x): return A()",
    "the order of annotations": "class A:\n    __annotations__ = dict.fromkeys([['a', 'b'], ['b', 'a']][N], int)\ndef g(x): return A",
    "the order of methods": "class A: pass\nfor name in [['a', 'b'], ['b', 'a']][N]:\n    setattr(A, name, lambda x: x)\ndef g(x): return vars(A)",
    "the order of attributes": "class A: pass\na = A()\na.__dict__.update([{'b': 1, 'c': 2}, {'c': 2, 'b': 1}][N])\ndef g(x): return a.__dict__",
    "the order of a namespace": "a = types.SimpleNamespace(**[{'b': 1, 'c': 2}, {'c': 2, 'b': 1}][N])\ndef g(x): return vars(a)",
    "the order of a model's fields": "M = pydantic.create_model('M', **[{'a': (int, 5), 'b': (int, 5)}, {'b': (int, 5), 'a': (int, 5)}][N])\ndef g(x): return M",
    "the order of a typed dict": "D = typing.TypedDict('D', [{'a': int, 'b': int}, {'b': int, 'a': int}][N])\ndef g(x): return list(D.__annotations__)",
    **{
        f"{what} of {kind}": f"import abc\nclass I:\n    n = N\nA = {made}\ndef g(x): return A"
        for kind, text in {
            "a made dataclass": "dataclasses.make_dataclass('A', [('a', int, DEFAULT)], namespace={'m': METHOD})",
            "a new class": "types.new_class('A', (), {}, lambda space: space.update(a=DEFAULT, m=METHOD))",
            "a class by a metaclass": "abc.ABCMeta('A', (), {'a': DEFAULT, 'm': METHOD})",
        }.items()
        for what, made in {
            "a default": text.replace("DEFAULT", "N").replace("METHOD", "5"),
            "a method": text.replace("DEFAULT", "5").replace("METHOD", "lambda self: N"),
            "an object": text.replace("DEFAULT", "5").replace("METHOD", "I()"),
        }.items()
    },
    "a metaclass": "class M(type):\n    def __len__(cls): return N\nclass A(metaclass=M): pass\ndef g(x): return len(A)",
    "a descriptor": "class D:\n    def __get__(self, o, t): return N\nclass A:\n    d = D()\ndef g(x): return A().d",
    "a class with slots": "class A:\n    __slots__ = ('n',)\n    def __init__(self): self.n = N\na = A()\ndef g(x): return a.n",
    "a partial method": "class A:\n    def m(self, n): return n\n    p = functools.partialmethod(m, N)\ndef g(x): return A().p()",
    "a cached function": "@functools.lru_cache\ndef c(x): return x * N\ndef g(x): return c(x)",
    "a registered function": "@functools.singledispatch\ndef c(x): return x\n@c.register\ndef _(x: int): return x * N\ndef g(x): return c(x)",
    "a context manager": "@contextlib.contextmanager\ndef c(): yield N\ndef g(x):\n    with c() as n: return n",
    "an attribute of a function": "def a(x): return x\na.n = N\nA = [a]\ndef g(x): return [h(x) * h.n for h in A]",
    "an attribute by a decorator": "def by(n):\n    def mark(f):\n        f.n = n\n        return f\n    return mark\n@by(N)\ndef a(x): return x\nA = [a]\ndef g(x): return [h.n for h in A]",
    "a name of a function that is read": "def aN(x): return x\nA = [aN]\ndef g(x): return {h.__name__: h(x) for h in A}",
    "a name of a function that is looked up": "def aN(x): return x\nA = [aN]\ndef g(x): return [getattr(h, '__qualname__') for h in A]",
    "a name of an inner function": "def g(x):\n    def aN(): return x\n    return aN.__name__",
    "a global by its name in a text": "def h1(x): return N\ndef g(x): return globals()[f'h{x}']()",
    "a global by its module": "import sys\ndef h1(x): return N\ndef g(x): return getattr(sys.modules[__name__], f'h{x}')()",
    "a global among the members of its module": "import inspect, sys\ndef h1(x): return N\ndef g(x): return inspect.getmembers(sys.modules[__name__])",
    "a global among the variables of its module": "def h1(x): return N\ndef g(x):\n    from sys import modules\n    import sys\n    return vars(modules[__name__])",
    "a global among those of a function": "def h1(x): return N\ndef g(x): return g.__globals__[f'h{x}']()",
    "a global in code in a text": "def h1(x): return N\ndef g(x): return eval('h1(x)')",
    "a global that a query names": "LIMIT = N\ndef g(x): return x.query('fare > @LIMIT')",
    "a global that a rule names": "LIMIT = N\nRULE = 'fare > @LIMIT'\ndef g(x): return x.query(RULE)",
    "a global that a rule in a list names": "LIMIT = N\nRULES = [['fare > @LIMIT']]\ndef keep(x, rule): return x.query(rule)\ndef g(x): return [keep(x, rule) for rule in RULES[0]]",
    "a global that a rule by default names": "LIMIT = N\ndef g(x, rule='fare > @LIMIT'): return x.eval(rule)",
    "a global that a rule in an object names": "LIMIT = N\nclass A:\n    rule = 'fare > @LIMIT'\n    def keep(self, x): return x.query(self.rule)\ndef g(x): return A().keep(x)",
    "a function that a rule names": "def limit(x): return N\nRULE = 'fare > @limit(fare)'\ndef g(x): return x.query(RULE)",
    "a table that a query names": "rides = [N]\nQUERY = 'select * from rides'\ndef g(x): return x.sql(QUERY)",
    "a variable that a rule names": "RULE = 'fare > @a1'\ndef g(x):\n    aN = 5\n    return x.query(RULE), aN",
    "a variable that a query names": "def g(x):\n    aN = 5\n    return x.query('fare > @a1'), aN",
    "a seed at the top of the module": "np.random.seed(N)\ndef g(x): return x",
    "a setting at the top of the module": "decimal.getcontext().prec = N\ndef g(x): return decimal.Decimal(x) / 3",
    "a variable that the module sets": "import os\nos.environ['TZ'] = 'N'\ndef g(x): return dt.datetime.now()",
    "a seed by its name": "SEED = N\nnp.random.seed(SEED)\ndef g(x): return x",
    "a seed in an object": "class C:\n    def __init__(self): self.seed = N\nconfig = C()\nnp.random.seed(config.seed)\ndef g(x): return x",
    "options by their name": "options = {'precision': N + 5}\nnp.set_printoptions(**options)\ndef g(x): return str(x)",
    "a variable by its name": "import os\nzone = 'N'\nos.environ['TZ'] = zone\ndef g(x): return dt.datetime.now()",
    "a function given to a library": "def mean(x): return N\nstring.mean = mean\ndef g(x): return string.mean(x)",
    "a function given to a library by setattr": "def mean(x): return N\nsetattr(string, 'mean', mean)\ndef g(x): return string.mean(x)",
    "a class that is registered in a library": "@pd.api.extensions.register_dataframe_accessor('ours')\nclass A:\n    def __init__(self, d): self.n = N\ndef g(x): return x.ours.n",
    "a call of a function that seeds": "def seed_all(n): np.random.seed(n)\nseed_all(N)\ndef g(x): return x",
    "a function that seeds": "def seed_all(n): np.random.seed(n + N)\nseed_all(5)\ndef g(x): return x",
    "a function whose callee seeds": "def inner(n): np.random.seed(n)\ndef seed_all(n): inner(n)\nseed_all(N)\ndef g(x): return x",
    "a function that imports what it seeds": "def seed_all(n):\n    import random\n    random.seed(n)\nseed_all(N)\ndef g(x): return x",
    "a method that seeds": "class C:\n    def __init__(self, n): self.n = n\n    def seed(self): np.random.seed(self.n)\nconfig = C(N)\nconfig.seed()\ndef g(x): return x",
    "a seed under a condition": "if len('a'):\n    np.random.seed(N)\ndef g(x): return x",
    "the condition of a seed": "FAST = N > 1\nif FAST:\n    np.random.seed(5)\ndef g(x): return x",
    "a seed in a try": "try:\n    np.random.seed(N)\nexcept ImportError:\n    pass\ndef g(x): return x",
    "a setting in a loop": "for name, value in {'prec': N + 5}.items():\n    setattr(decimal.getcontext(), name, value)\ndef g(x): return decimal.Decimal(x) / 3",
    "a setting within with": "with contextlib.suppress(ValueError):\n    decimal.getcontext().prec = N + 5\ndef g(x): return decimal.Decimal(x) / 3",
    "a setting that is raised": "decimal.getcontext().prec += N\ndef g(x): return decimal.Decimal(x) / 3",
    "a seed whose result is dropped": "_ = np.random.seed(N)\ndef g(x): return x",
    "a virtual subclass": "import abc\nclass A(abc.ABC): pass\nA.register([int, float][N])\ndef g(x): return isinstance(x, A)",
    "a virtual subclass by a decorator": "import abc\nclass A(abc.ABC): pass\n@A.register\nclass B:\n    n = N\ndef g(x): return isinstance(x, A)",
    "an object that seeds as it is made": "class C:\n    def __init__(self, n): np.random.seed(n)\nC(N)\ndef g(x): return x",
    "a class method that seeds": "class C:\n    @classmethod\n    def seed(cls, n): np.random.seed(n)\nC.seed(N)\ndef g(x): return x",
    "a docstring that is read": "def a(x):\n    'Sums up N.'\nA = [a]\ndef g(x): return [h.__doc__ for h in A]",
    "a docstring of a class that is read": "class A:\n    'Sums up N.'\ndef g(x): return A.__doc__",
    "a docstring by a library": "import inspect\ndef a(x):\n    'Sums up N.'\ndef g(x): return inspect.getdoc(a)",
    "a comment that is read": "import inspect\ndef a(x):\n    # Sums up N.\n    return x\ndef g(x): return inspect.getsource(a)",
    "a subclass": "class A: pass\nclass B(A):\n    n = N\ndef g(x): return [each.n for each in A.__subclasses__()]",
    "a subclass of a subclass": "class A:\n    @classmethod\n    def all(cls): return [c for each in cls.__subclasses__() for c in (each, *each.all())]\nclass B(A): pass\nclass C(B):\n    n = N\ndef g(x): return A.all()",
    "the name of a subclass": "class A: pass\nclass BN(A): pass\ndef g(x): return [each.__name__ for each in A.__subclasses__()]",
    "an annotation that is read": "def a(x: [int, float][N]): return x\nA = [a]\ndef g(x): return [h.__annotations__['x'](x) for h in A]",
    "an annotation of the result": "def a(x) -> [int, float][N]: return x\ndef g(x): return typing.get_type_hints(a)",
    "a type in an annotation": "class T:\n    n = N\ndef a(x: T): return x\ndef g(x):\n    from inspect import signature\n    return signature(a)",
    "a type in an annotation in a text": "class T:\n    n = N\ndef a(x: 'list[T]'): return x\ndef g(x): return typing.get_type_hints(a)",
    "an object in an annotation": "class T:\n    def __init__(self, n): self.n = n\nclass A:\n    a: typing.Annotated[int, T(N)]\ndef g(x): return A",
    "a type in a class's annotation": "class T:\n    n = N\nclass A:\n    a: T\ndef g(x): return typing.get_type_hints(A)['a'].n",
    "an argument's name that is read": "import inspect\ndef a(cN): return 5\ndef g(x): return [x[name] for name in inspect.signature(a).parameters]",
    "a name in code that is read": "def a(x):\n    bN = x\n    return bN\ndef g(x): return a.__code__.co_varnames",
    "a library's function": "def g(x): return [math.sin, math.cos][N](x)",
    "a builtin": "g = [len, sum][N]",
    "a ufunc of NumPy's": "U = [np.add, np.subtract][N]\ndef g(x): return U(x, 1)",
    "a ufunc of a function": "U = np.frompyfunc(lambda x: x * N, 1, 1)\ndef g(x): return U(x)",
    "a vectorized function": "U = np.vectorize(lambda x: x * N)\ndef g(x): return U(x)",
    "a function in a Polars expression": "E = pl.col('x').map_elements(lambda x: str(x) * N, return_dtype=pl.String)\ndef g(x): return E",
    "what that function returns": "E = pl.col('x').map_elements(str, return_dtype=[pl.String, pl.Binary][N])\ndef g(x): return E",
    "a function of batches in a Polars query": "Q = pl.LazyFrame({'a': [1]}).map_batches(lambda d: d * N)\ndef g(x): return Q",
    "a special method of an enum": "class E(enum.Enum):\n    A = 5\n    def __call__(self, x): return x * N\ndef g(x): return E.A(x)",
    "a private method of an enum": "class E(enum.Enum):\n    A = 5\n    def _m(self): return N\ndef g(x): return E.A._m()",
    "a private value of an enum": "class E(enum.Enum):\n    A = 5\n    __k = N\n    def m(self): return self.__k\ndef g(x): return E.A.m()",
    "what an enum is made with": "class E(enum.Enum):\n    A = 5\n    def __init__(self, n): self.n = n * N\ndef g(x): return E.A.n",
    "how an enum is made": "class E(enum.Enum):\n    A = 5\n    def __new__(cls, n):\n        made = object.__new__(cls)\n        made._value_, made.n = n, n * N\n        return made\ndef g(x): return E.A.n",
    "what an enum lacks": "class E(enum.Enum):\n    A, B = 5, 6\n    @classmethod\n    def _missing_(cls, x): return list(cls)[N - 1]\ndef g(x): return E(x)",
    "a cached property of an enum": "class E(enum.Enum):\n    A = 5\n    @functools.cached_property\n    def p(self): return N\ndef g(x): return E.A.p",
    "what no member of an enum is": "class E(enum.Enum):\n    A = 5\n    k = enum.nonmember(N)\ndef g(x): return E.k",
    "an attribute of a member": "class E(enum.Enum):\n    A = 5\nE.A.n = N\ndef g(x): return E.A.n",
    "the boundary of a flag": "class F(enum.Flag, boundary=[enum.STRICT, enum.KEEP][N]):\n    A = 5\ndef g(x): return F(x)",
    "the metadata of a field": "@dataclasses.dataclass\nclass D:\n    a: int = dataclasses.field(default=0, metadata={'n': N})\ndef g(x): return dataclasses.fields(D)[0].metadata",
    "a kind of partial": "class P(functools.partial):\n    def __call__(self, x): return x * N\np = P(max)\ndef g(x): return p(x)",
    "a kind of property": "class P(property):\n    def __get__(self, o, t): return N\nclass A:\n    p = P()\ndef g(x): return A().p",
    "a kind of class method": "class P(classmethod):\n    def __get__(self, o, t): return lambda: N\nclass A:\n    p = P(len)\ndef g(x): return A().p()",
    "a kind of cached property": "class P(functools.cached_property):\n    def __get__(self, o, t): return N\nclass A:\n    p = P(len)\ndef g(x): return A().p",
    **{
        f"{what} of {kind}": f"{head}\n{body}\ndef g(x): return M"
        for kind, head in {
            "a model": "class M(pydantic.BaseModel):",
            "a dataclass of pydantic's": "@pydantic.dataclasses.dataclass\nclass M:",
        }.items()
        for what, body in {
            "a default": "    a: int = N",
            "a validator in a type": "    a: typing.Annotated[int, pydantic.AfterValidator(lambda v: v * N)]",
            "a serializer in a type": "    a: typing.Annotated[int, pydantic.PlainSerializer(lambda v: v * N)]",
            "a validator": "    a: int\n    @pydantic.field_validator('a')\n    @classmethod\n    def v(cls, v): return v * N",
            "its time": "    a: int\n    @pydantic.field_validator('a', mode=['before', 'after'][N])\n    @classmethod\n    def v(cls, v): return v",
            "its field": "    a: int\n    b: int\n    @pydantic.field_validator(['a', 'b'][N])\n    @classmethod\n    def v(cls, v): return v",
            "an alias": "    a: int = pydantic.Field(alias=['b', 'c'][N])",
            "whether it is left out": "    a: int = pydantic.Field(exclude=[True, False][N])",
            "a type": "    a: [int, float][N]",
        }.items()
    },
    "a type of the user's in a model": "class I(pydantic.BaseModel):\n    i: int = N\nclass M(pydantic.BaseModel):\n    a: list[I]\ndef g(x): return M(a=x)",
    "a private attribute of a model": "class M(pydantic.BaseModel):\n    _a: int = pydantic.PrivateAttr(default=N)\ndef g(x): return M()._a",
}

#: what `g` uses as a global
VALUES = {
    "an integer": "N",
    "a float": "N / 3",
    "a type of number": "[1, 1.0][N]",
    "a truth value": "[1, True][N]",
    "a zero's sign": "[0.0, -0.0][N]",
    "a complex number": "complex(0, N)",
    "a text": "'aN'",
    "bytes": "b'aN'",
    "bytes or text": "['a', b'a'][N]",
    "a byte array": "bytearray([N])",
    "None": "[None, 0][N]",
    "a list": "[0, [N]]",
    "a tuple or a list": "[(1,), [1]][N]",
    "a set": "{N, 7}",
    "a frozen set": "frozenset({N, 7})",
    "a dict": "{'a': {'b': N}}",
    "a dict's key": "{N: 1}",
    "an ordered dict": "collections.OrderedDict([(1, 1), (2, 2)][::[1, -1][N]])",
    "a default dict": "collections.defaultdict(lambda: N)",
    "a deque": "collections.deque([N])",
    "a deque's length": "collections.deque([], N)",
    "a counter": "collections.Counter('a' * N)",
    "a chain of dicts": "collections.ChainMap({'a': N})",
    "a read-only dict": "types.MappingProxyType({'a': N})",
    "a simple namespace": "types.SimpleNamespace(a=N)",
    "a named tuple": "collections.namedtuple('P', 'a')(N)",
    "a range": "range(N)",
    "a slice": "slice(N)",
    "a decimal": "decimal.Decimal(N)",
    "a fraction": "fractions.Fraction(1, N + 1)",
    "a date": "dt.date(2024, 1, N)",
    "a time zone": "dt.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo(['UTC', 'Europe/Berlin'][N]))",
    "an offset": "dt.timezone(dt.timedelta(hours=N))",
    "a duration": "dt.timedelta(N)",
    "a path": "pathlib.Path('N')",
    "a regular expression": "re.compile('aN')",
    "its flags": "re.compile('a', [0, re.I][N])",
    "a template": "string.Template('$aN')",
    "a partial": "functools.partial(max, N)",
    "a partial's keyword": "functools.partial(int, base=N + 2)",
    "an item getter": "operator.itemgetter(N)",
    "a method caller": "operator.methodcaller('rjust', N)",
    "an enum": "enum.Enum('E', {'A': N}).A",
    "a flag": "enum.Flag('F', {'A': N}).A",
    "a dataclass": "dataclasses.make_dataclass('D', ['a'])(N)",
    "an exception": "ValueError(N)",
    "a type": "[int, float][N]",
    "a generic": "[list[int], list[str]][N]",
    "a cycle": "itertools.cycle([N])",
    "an array": "np.array([N])",
    "an array's dtype": "np.array([1], ['i4', 'i8'][N])",
    "an array's shape": "np.zeros([(2, 3), (3, 2)][N])",
    "an array's order": "np.array([[1, 2], [3, 4]])[[0, 1][::[1, -1][N]]]",
    "a structured array": "np.array([(1, N)], 'i4,i4')",
    "a mask": "np.ma.MaskedArray([1, 2], [[True, False], [False, True]][N])",
    "an array of objects": "np.array([{'a': N}], object)",
    "a scalar": "np.float32(N)",
    "a dtype": "np.dtype(['f4', 'f8'][N])",
    "a moment of NumPy's": "np.datetime64(N, 's')",
    "its unit": "np.datetime64(1, ['s', 'm'][N])",
    "a generator's seed": "np.random.default_rng(N)",
    "a polynomial": "np.polynomial.Polynomial([N])",
    "a column": "pa.array([1, N])",
    "a missing value": "pa.array([1, [None, 0][N]])",
    "a chunked column": "pa.chunked_array([[1], [N]])",
    "a table": "pa.table({'a': [N]})",
    "a table's metadata": "pa.table({'a': [1]}).replace_schema_metadata({'a': 'N'})",
    "an Arrow scalar": "pa.scalar(N)",
    "its type": "pa.scalar(1, [pa.int8(), pa.int16()][N])",
    "an Arrow type": "[pa.int8(), pa.int16()][N]",
    "a schema": "pa.schema([('aN', pa.int8())])",
    "whether a column may be missing": "pa.schema([pa.field('a', pa.int8(), nullable=[True, False][N])])",
    "an expression": "pc.field('a') > N",
    "the type of a number in it": "pc.field('a') / [2, 2.0][N] > 1",
    "a value deep in its list": "pc.field('a').isin([*range(50), N + 100, *range(200, 250)])",
    "its column": "pc.field('aN') > 1",
    "its options": "pc.round(pc.field('a'), ndigits=N)",
    "options of Arrow's": "pc.CastOptions(pa.int8(), allow_int_overflow=[True, False][N])",
    "a Polars expression": "pl.col('a') + N",
    "a Polars type": "[pl.Int8, pl.Int16][N]",
    "a Polars frame": "pl.DataFrame({'a': [N]})",
    "a Polars series": "pl.Series('a', [N])",
    "a Polars query": "pl.LazyFrame({'a': [1]}).filter(pl.col('a') > N)",
    "a pandas frame": "pd.DataFrame({'a': [N]})",
    "a pandas index": "pd.Series([1], index=[N])",
    "a dataset": "inputs.range(N)",
    "a dataset's function": "inputs.range(3).map(lambda x: x * N)",
    "a dataset's condition": "inputs.from_arrow(pa.table({'a': [1]})).filter(pc.field('a') > N)",
}

#: how the function that is fingerprinted comes to `g`
WAYS = {
    "its own name": "from helper import g\ndef f(x): return g(x)",
    "its module": "import helper\ndef f(x): return helper.g(x)",
    "an import in the body": "def f(x):\n    import helper\n    return helper.g(x)",
    "an import of a name in the body": "def f(x):\n    from helper import g\n    return g(x)",
    "a closure": "import helper\ndef make(h):\n    def f(x): return h(x)\n    return f\nf = make(helper.g)",
    "a default": "import helper\ndef f(x, h=helper.g): return h(x)",
    "a keyword default": "import helper\ndef f(x, *, h=helper.g): return h(x)",
    "a partial": "import functools, helper\nf = functools.partial(helper.g, 1)",
    "a partial's argument": "import functools, helper\ndef call(h, x): return h(x)\nf = functools.partial(call, helper.g)",
    "a list": "import helper\nH = [helper.g]\ndef f(x): return H[0](x)",
    "a dict": "import helper\nH = {'g': helper.g}\ndef f(x): return H['g'](x)",
    "an object": "import helper\nclass C:\n    def __init__(self, h): self.h = h\n    def __call__(self, x): return self.h(x)\nf = C(helper.g)",
    "a bound method": "import helper\nclass C:\n    def __init__(self, h): self.h = h\n    def m(self, x): return self.h(x)\nf = C(helper.g).m",
    "a class attribute": "import helper\nclass C:\n    h = staticmethod(helper.g)\ndef f(x): return C.h(x)",
    "a decorator": "import functools, helper\n@functools.wraps(helper.g)\ndef f(x): return helper.g(x)",
    "a cache": "import functools, helper\nf = functools.lru_cache(helper.g)",
    "a dispatch": "import functools, helper\nf = functools.singledispatch(lambda x: x)\nf.register(int, helper.g)",
    "a ufunc": "import numpy as np, helper\nU = np.frompyfunc(helper.g, 1, 1)\ndef f(x): return U(x)",
    "a vectorized function": "import numpy as np, helper\nV = np.vectorize(helper.g)\ndef f(x): return V(x)",
    "a Polars expression": "import polars as pl, helper\nE = pl.col('x').map_elements(helper.g, return_dtype=pl.Int64)\ndef f(x): return E",
    "a lambda in a list": "import helper\nH = [lambda x: helper.g(x)]\ndef f(x): return H[0](x)",
    "a comprehension": "import helper\ndef f(x): return [helper.g(y) for y in x]",
    "a class body": "import helper\nclass C:\n    v = [helper.g]\ndef f(x): return C",
    "a dataset": "import helper\nfrom spanwise.pipelines import input as inputs\nD = inputs.range(3).map(helper.g)\ndef f(x): return D",
}


#: what a module changes in another one of the user's, which the function imports as it runs
CHANGES_ELSEWHERE = {
    f"{what} of another module": (
        "DEPTH = 5\noptions = {}\ndef configure(n):\n    global DEPTH\n    DEPTH = n\ndef fit(): return DEPTH",
        f"import helper\n{change}\ndef f(x):\n    from helper import fit\n    return fit()",
    )
    for what, change in {
        "a constant": "helper.DEPTH = N",
        "an option": "helper.options['depth'] = N",
        "an option by its name": "from helper import options\noptions.update(depth=N)",
        "what a function sets": "helper.configure(N)",
        "a function": "def mine(): return N\nhelper.fit = mine",
    }.items()
}

#: what changes nothing for the function `g`
UNRELATED = {
    "a function that is registered": "REGISTRY = []\ndef register(f): REGISTRY.append(f)\ndef h(x): return N\nregister(h)\ndef g(x): return x",
    "a function that a class registers": "class R:\n    all = []\n    @classmethod\n    def register(cls, f):\n        cls.all.append(f)\n        return f\ndef h(x): return N\nR.register(h)\nR().register(h)\n@R.register\ndef i(x): return N\ndef g(x): return x",
    "a function that a decorator registers": "REGISTRY = {}\ndef register(f):\n    REGISTRY[f.__name__] = np.vectorize(f)\n    return f\n@register\ndef h(x): return N\ndef g(x): return x",
    "how much is logged": "import logging\nLEVEL = N\ndef configure(): logging.getLogger('a').setLevel(LEVEL)\nconfigure()\nlogging.getLogger('b').setLevel(LEVEL)\ndef g(x): return x",
    "what a script does": "if __name__ == '__main__':\n    np.random.seed(N)\ndef g(x): return x",
    "what is shown": "print('N', end='')\ndef g(x): return x",
    "a value that is computed": "A = np.array([N])\nB = A.sum()\ndef g(x): return x",
    "an unused function that seeds": "def h(): np.random.seed(N)\ndef g(x): return x",
    "a subclass of what nobody asks for subclasses": "class A: pass\nclass B(A):\n    n = N\ndef g(x): return A",
    "an annotation that nobody reads": "def a(x: [int, float][N]) -> [int, float][N]: return x\ndef g(x): return a(x)",
    "a type in such an annotation": "class T:\n    n = N\ndef a(x: T): return x\ndef g(x): return a(x)",
    "the order of methods that nobody lists": "class A: pass\nfor name in [['a', 'b'], ['b', 'a']][N - 1]:\n    setattr(A, name, lambda x: x)\ndef g(x): return A().a(x)",
    "the order of attributes that nobody lists": "class A: pass\na = A()\na.__dict__.update([{'b': 1, 'c': 2}, {'c': 2, 'b': 1}][N])\ndef g(x): return a.b",
    "a global that a text of no rule names": "LIMIT = N\nRULE = 'fare > @LIMIT'\ndef g(x): return x, RULE",
    "a comment": "def a(x):\n    # Sums up N.\n    return x\ndef g(x): return a(x)",
    "what is done in a loop": "TOTAL = types.SimpleNamespace(a=0)\nfor each in range(2):\n    TOTAL.a += N\ndef g(x): return x",
}


def changed(text: str, number: int) -> str:
    """The text with one number or the other for N; `[a, b][N]` is one of two things."""
    text = text.replace("[+, -][N]", "+-"[number - 1]).replace("[N]", f"[{number - 1}]")
    return re.sub("N(?![a-z])", str(number), text)


@pytest.fixture
def fingerprint(tmp_path, monkeypatch):
    """The fingerprint of a project whose helper has this text; None if it is refused.

    What the texts set in the process, such as the precision of decimals, does not outlive the test.
    """
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TZ", os.environ.get("TZ", "UTC"))

    def load(name: str, source: str) -> types.ModuleType:
        module = types.ModuleType(name)
        module.__file__ = str(tmp_path / f"{name}.py")
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(source, module.__file__, "exec", dont_inherit=True), vars(module))
        return module

    def fingerprint(helper: str, project: str) -> str | None:
        load("helper", HEAD + helper)
        try:
            return of_function(load("project", project).f)
        except Unfingerprintable:
            return None

    with decimal.localcontext():
        yield fingerprint


GENERATED = {
    **{f"{what}": (code, WAYS["its own name"]) for what, code in CODE.items()},
    **{
        f"{what} as a global": (f"C = {value}\ndef g(x): return C", WAYS["its module"])
        for what, value in VALUES.items()
    },
    **{
        f"{what} in a closure": (
            f"def make(c):\n    def g(x): return c\n    return g\ng = make({value})",
            WAYS["its own name"],
        )
        for what, value in VALUES.items()
    },
    **{f"{what} as a default": (f"def g(x, c={value}): return c", WAYS["a list"]) for what, value in VALUES.items()},
    **{
        f"{what}, by {way}": (CODE[what], project)
        for way, project in WAYS.items()
        for what in ("a constant", "a callee", "a closure")
    },
    **CHANGES_ELSEWHERE,
}


@pytest.mark.parametrize("what", UNRELATED)
def test_what_a_module_does_besides_leaves_the_fingerprint(what, fingerprint):
    """What a module does when it is imported counts only where it can change what the function gives."""
    one, other = (fingerprint(changed(UNRELATED[what], number), WAYS["its own name"]) for number in (1, 2))

    assert one == other


def test_a_setting_without_content_does_not_refuse_the_function(fingerprint):
    """What a module sets in libraries may hold a lock: then its class stands for it."""
    assert fingerprint("import threading\nstring.lock = threading.Lock()\ndef g(x): return x", WAYS["a list"])
    assert fingerprint("import threading\nL = [threading.Lock()]\nstring.lock = L\ndef g(x): return x", WAYS["a list"])


def test_what_a_library_keeps_in_a_class_that_it_makes_does_not_refuse_the_function(fingerprint):
    """A class may be made by a library, for itself, with a lock: then the lock's class stands for it."""
    text = "import threading\nA = types.new_class('A', (), {}, lambda space: space.update(lock=threading.Lock()))"

    assert fingerprint(f"{text}\ndef g(x): return A", WAYS["a list"])


def test_an_annotation_without_content_does_not_refuse_the_function(fingerprint):
    """What is read of annotations may be a lock: then its class stands for it."""
    text = "import threading\ndef a(x: threading.Lock()): return x\ndef g(x): return a.__annotations__"

    assert fingerprint(text, WAYS["a list"])


def test_a_class_of_a_module_that_was_loaded_again_is_no_subclass(fingerprint, monkeypatch):
    """A daemon loads a pipeline file again after an edit, while the module with the base stays as it was."""
    monkeypatch.setitem(sys.modules, "base", types.ModuleType("base"))
    exec("class A: pass", vars(sys.modules["base"]))
    helper = "from base import A\nclass B(A):\n    n = N\ndef g(x): return A.__subclasses__()"

    first = fingerprint(changed(helper, 1), WAYS["a list"])
    kept = sys.modules["helper"]
    other = fingerprint(changed(helper, 2), WAYS["a list"])

    assert first != other
    assert fingerprint(changed(helper, 1), WAYS["a list"]) == first
    assert kept.B in sys.modules["base"].A.__subclasses__()


def test_what_is_still_running_has_set_nothing(fingerprint):
    """A script whose `main` asks for a digest is not digested with all that `main` does."""
    script = (
        "from spanwise.orchestrator.fingerprint import of_function\n"
        "def g(x): return x\n"
        "def main(): found.append(of_function(g)), np.random.rand(N)\n"
        "found = []\nmain()\n"
    )
    project = "import helper\nf = dict.fromkeys(helper.found).get"

    one, other = (fingerprint(changed(script, number), project) for number in (1, 2))

    assert one == other


@pytest.mark.filterwarnings("ignore:registration of accessor:UserWarning")
@pytest.mark.filterwarnings("ignore::polars.exceptions.PolarsInefficientMapWarning")
def test_each_change_gives_another_fingerprint_or_is_refused(fingerprint):
    """Nothing that can change a result is passed over: code, values, and the ways to come to them."""
    missed, unstable, refused = [], [], []
    for what, (helper, project) in GENERATED.items():
        one, other, again = (fingerprint(changed(helper, n), changed(project, n)) for n in (1, 2, 1))
        if one is None:
            refused.append(what)
        elif one == other:
            missed.append(what)
        elif one != again:
            unstable.append(what)

    assert (missed, unstable) == ([], [])
    assert len(GENERATED) >= 300
    assert {what.partition(" as ")[0].partition(" in a closure")[0] for what in refused} == {"options of Arrow's"}
