"""SqlAnalyst-v0 as a policy meets it: what is asked, what a query may do, what is rewarded, and what cheating earns."""

import asyncio
import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import re
import sqlite3
import threading
import time
from collections import Counter
from fractions import Fraction

import pytest
from suite import check_guard, claims_success, earned, play_all, plays

import llmgym
from llmgym import Policy, StopReason, Task
from llmgym.errors import TaskError, ToolError
from llmgym_environments.sharing import FairSemaphore
from llmgym_environments.sql_analyst import SqlAnalystEnv, SqlAnalystExpert, generate_tasks
from llmgym_environments.sql_analyst.answer import parse_rows, target_rows
from llmgym_environments.sql_analyst.database import (
    CUT_NOTE,
    FUNCTIONS,
    PLACES,
    QUICK_CPU_S,
    Database,
    _semaphore,
    _template,
)
from llmgym_environments.sql_analyst.tasks import WORDS

SCRIPT = """
CREATE TABLE shops (id INTEGER PRIMARY KEY, name TEXT, city TEXT);
CREATE TABLE sales (shop_id INTEGER REFERENCES shops(id), amount INTEGER, price REAL);
INSERT INTO shops VALUES (3, 'fox', 'oslo'), (8, 'gull', 'rome');
INSERT INTO sales VALUES (3, 12, 2.5), (3, 30, NULL), (8, 7, 4.0);
"""
TASK = Task("What is the total amount in oslo?", 42, {"database": SCRIPT})


def call(name, /, **arguments):
    return {"id": f"call_{name}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def sql(query):
    return call("run_sql", query=query)


def play(*messages, task=TASK, env=SqlAnalystEnv):
    """Play assistant messages (a list is a message with these calls) and return the episode."""
    script = [
        message if isinstance(message, str) else {"role": "assistant", "tool_calls": message} for message in messages
    ]
    return asyncio.run(llmgym.run_episode(env(), task, llmgym.ScriptedPolicy(script)))


def results(episode):
    return [message["content"] for message in episode.messages if message["role"] == "tool"]


def query(text):
    """The result of one query, or the error it is answered with."""
    database = Database(SCRIPT)
    try:
        return database.query(text)
    except ToolError as error:
        return f"error: {error}"
    finally:
        database.close()


def test_an_episode():
    episode = play(
        [call("list_tables")],
        [call("describe_table", table="sales"), call("describe_table", table="shops")],
        [sql("SELECT sum(amount) FROM sale")],
        [sql("SELECT sum(amount) FROM sales WHERE shop_id = 3")],
        "42",
    )
    assert episode.initial_messages == [
        {"role": "system", "content": "Use the tools. Then reply with only the answer, as run_sql would show it."},
        {"role": "user", "content": "What is the total amount in oslo?"},
    ]
    assert results(episode) == [
        "shops, sales",
        "shop_id integer references shops(id), amount integer, price real",
        "id integer primary key, name text, city text",
        "tool_error: no such table: sale",
        "42",
    ]
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.TERMINATED)
    assert episode.metrics == {
        "turns": 5,
        "tool_calls": 5,
        "tool_errors": 1,
        "calls_list_tables": 1,
        "calls_describe_table": 2,
        "calls_run_sql": 2,
        "tables": 2,
        "tables_described": 2,
        "queries": 1,
        "queries_failed": 1,
        "answer_rows": 1,
        "answer_rows_right": 1,
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("SELECT name, amount FROM sales JOIN shops ON id = shop_id", "fox | 12\nfox | 30\ngull | 7"),
        ("SELECT amount, price FROM sales;", "12 | 2.5\n30 | NULL\n7 | 4.0"),
        ("select city, count(*) from shops, sales where id = shop_id group by city", "oslo | 2\nrome | 1"),
        ("SELECT rank() OVER (ORDER BY amount), amount FROM sales", "1 | 7\n2 | 12\n3 | 30"),
        ("SELECT name FROM shops WHERE id NOT IN (SELECT shop_id FROM sales)", "no rows"),
        ("SELECT name FROM sqlite_master", "shops\nsales"),
        ("SELECT 'a' || x'41', x'0a', 1/0, 0.5", "aA | x'0a' | NULL | 0.5"),
        ("-- nothing", "no rows"),
    ],
)
def test_what_a_query_shows(text, shown):
    assert query(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        *("DELETE FROM sales", "UPDATE sales SET amount = 1", "INSERT INTO shops VALUES (1, 'a', 'b')"),
        *("DROP TABLE sales", "CREATE TABLE t (a)", "CREATE TEMP TABLE t (a)", "ALTER TABLE sales RENAME TO s"),
        *("CREATE VIEW v AS SELECT 1", "CREATE TRIGGER t AFTER INSERT ON sales BEGIN SELECT 1; END"),
        *("ATTACH ':memory:' AS other", "VACUUM INTO 'copy.db'", "VACUUM", "DETACH main", "ANALYZE"),
        *("BEGIN", "COMMIT", "SAVEPOINT s", "PRAGMA query_only = OFF", "PRAGMA table_info(sales)"),
        *("SELECT * FROM pragma_table_info('sales')", "SELECT * FROM json_each('[1]')"),
        *("SELECT load_extension('x')", "SELECT readfile('/etc/passwd')", "SELECT writefile('x', 'y')"),
        *("SELECT random()", "SELECT current_timestamp", "SELECT sqlite_version()", "SELECT date('now')"),
        *("SELECT zeroblob(10)", "SELECT printf('%9d', 1)", "SELECT replace('a', 'a', 'b')"),
        *("SELECT 1; SELECT 2", "SELECT '\x00'", "\ud800", "SELECT ?", "SELECT * FROM missing", "nonsense"),
    ],
)
def test_what_a_query_may_not_do(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    database = Database(SCRIPT)
    with pytest.raises(ToolError):
        database.query(text)
    assert database.query("SELECT count(*), sum(amount) FROM sales") == "3 | 49"
    assert database.query("SELECT name FROM sqlite_master") == "shops\nsales"
    database.close()
    assert not list(tmp_path.iterdir())


def test_a_refusal_says_what_is_allowed():
    assert query("DELETE FROM sales") == "error: not authorized; allowed is only SELECT from shops, sales"
    assert query("SELECT * FROM json_each('[1]')") == (
        "error: not authorized: json_each; allowed is only SELECT from shops, sales"
    )
    assert query("SELECT random()").endswith(f"; the functions are {', '.join(sorted(FUNCTIONS))}")
    assert query("WITH a AS (SELECT 1) SELECT * FROM a") == "error: WITH is not available; write a subquery in FROM"
    for explained in ("EXPLAIN SELECT 1", "explain query plan SELECT 1", "/* a */ Explain SELECT 1"):
        assert query(explained) == "error: EXPLAIN is not available; allowed is only SELECT"
    assert query("SELECT" + " " * 1000) == "error: the query has 1006 characters; at most 1000 are allowed"
    assert play([call("describe_table", table="shop")], "").messages[-2]["content"] == (
        "tool_error: no table 'shop'; list_tables lists them. Did you mean 'shops'?"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("SELECT 'with love'", "with love"),
        ("SELECT 'it''s with', 'explain'", "it's with | explain"),
        ("SELECT '\"', 'with', '\"'", '" | with | "'),
        ('SELECT "with" FROM (SELECT 1 AS "with")', "1"),
        ('SELECT "a""with" FROM (SELECT 1 AS "a""with")', "1"),
        ("SELECT [with], [it's] FROM (SELECT 1 AS `with`, 2 AS [it's])", "1 | 2"),
        ("SELECT `a``with` FROM (SELECT 1 AS `a``with`)", "1"),
        ("SELECT 1 -- with, it's\n, 2 -- 'with", "1 | 2"),
        ("SELECT 1 /* with, it's */ + /*/ with */ 2 /* 'explain", "3"),
        ("SELECT name AS withal FROM shops WHERE name LIKE '%?:@$#%'", "no rows"),
    ],
)
def test_words_in_texts_quoted_names_and_comments_are_free(text, shown):
    assert query(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "with a AS (SELECT 1) SELECT * FROM a",
        "SELECT * FROM (WITH a AS (SELECT 1) SELECT * FROM a)",
        "SELECT 'it''s', * FROM (/* ' */WITH/* ' */a AS (SELECT 1) SELECT * FROM a)",
        "SELECT 'a' /*/ ' */ FROM (WITH a AS (SELECT 1) SELECT * FROM a) --'",
        "SELECT 1 -- '\nFROM (WITH a AS (SELECT 1) SELECT * FROM a) --'",
        'SELECT "\'" FROM (SELECT 1 AS "\'"), (WITH a AS (SELECT 1) SELECT * FROM a) --\'',
        'SELECT ["] FROM (SELECT 1 AS ["]), (WITH a AS (SELECT 1) SELECT * FROM a) --"',
        "SELECT `'` FROM (SELECT 1 AS `'`), (WITH a AS (SELECT 1) SELECT * FROM a) --'",
        "SELECT x'41'FROM(WITH a AS (SELECT 1) SELECT * FROM a)",
    ],
)
def test_with_is_refused_wherever_it_is_used(text):
    assert sqlite3.connect(":memory:").execute(text).fetchall()  # SQLite itself runs it
    assert query(text) == "error: WITH is not available; write a subquery in FROM"


@pytest.mark.parametrize("name", ["?", "?1", ":a", "@a", "$a", "$a(')", "#1"])
def test_a_parameter_is_refused_before_anything_is_prepared(name):
    hidden = f"SELECT {name}, * FROM (WITH a AS (SELECT 1) SELECT * FROM a) --'"
    assert query(hidden) == f"error: {name[0]} is not available; write the value itself"


def test_every_allowed_function_exists():
    uses = {"coalesce": "1, 2", "glob": "1, 2", "iif": "1, 2, 3", "ifnull": "1, 2", "instr": "1, 2", "like": "1, 2"}
    uses |= {"nullif": "1, 2", "substr": "1, 2", "rank": "", "dense_rank": "", "row_number": ""}
    for name in FUNCTIONS:
        window = " OVER (ORDER BY id)" if uses.get(name) == "" else ""
        assert "error" not in query(f"SELECT {name}({uses.get(name, '1')}){window} FROM shops"), name


@pytest.fixture
def unlimited(monkeypatch):
    """A database without the one limit that is named."""

    def make(**limits):
        for name, value in limits.items():
            monkeypatch.setattr(f"llmgym_environments.sql_analyst.database.{name}", value)
        return Database("CREATE TABLE t (a INTEGER, b TEXT); INSERT INTO t VALUES " + ", ".join(["(1, 'x')"] * 100))

    return make


def test_a_long_query_is_stopped(unlimited):
    heavy = "SELECT count(*) FROM t a, t b, t c"  # a million rows
    with pytest.raises(ToolError, match=r"^the query takes too long; join on keys, or read fewer rows$"):
        unlimited().query(heavy)
    assert unlimited(MAX_STEPS=100_000_000).query(heavy) == "1000000"
    with pytest.raises(ToolError, match="takes too long"):
        unlimited(MAX_CPU_S=0.0).query(heavy)


def test_a_long_text_is_refused():
    assert query(f"SELECT '{'a' * 400}' || '{'b' * 400}'") == "a" * 400 + "b" * 400
    grown = "(SELECT group_concat('" + "a" * 400 + "') FROM sales)"
    assert query(f"SELECT length({grown})") == "error: string or blob too big"


def test_long_output_is_cut_with_a_note_that_says_how_to_get_the_rest(unlimited):
    database = unlimited()
    first = database.query("SELECT row_number() OVER (ORDER BY rowid) FROM t")
    assert first == "\n".join(map(str, range(1, 21))) + f"\n{CUT_NOTE}"
    assert database.query("SELECT rowid FROM t LIMIT 3 OFFSET 20") == "21\n22\n23"
    assert CUT_NOTE not in database.query("SELECT rowid FROM t LIMIT 20")
    wide = f"SELECT '{'a' * 900}' s"
    assert database.query(f"{wide} FROM t LIMIT 3") == "\n".join(["a" * 900] * 2) + "\n" + "a" * 198 + f"\n{CUT_NOTE}"
    with pytest.raises(ToolError, match="too many columns"):
        database.query("SELECT " + ", ".join(["1"] * 31))


@pytest.mark.parametrize(
    ("target", "answer", "reward"),
    [
        (42, "42", 1.0),
        (42, " 42.0\n", 1.0),
        (42, "42 ", 1.0),
        (2.5, "2.50", 1.0),
        (42, "", 0.0),
        (42, "42\n42", 0.0),
        (42, "42 | 42", 0.0),
        (42, "41\n42", 0.0),
        (42, "The answer is 42", 0.0),
        (42, "SELECT 42", 0.0),
        ("plum", "plum", 1.0),
        ("plum", "Plum", 0.0),
        ("plum", "'plum'", 0.0),
        ("plum", "plum, fig", 0.0),
        ("plum", "plum\nfig", 0.0),
        ([["oslo", 12], ["rome", 7]], "oslo | 12\nrome | 7", 1.0),
        ([["oslo", 12], ["rome", 7]], "rome|7.0\n\noslo|12", 1.0),
        ([["oslo", 12], ["rome", 7]], "oslo | 12", 0.0),
        ([["oslo", 12], ["rome", 7]], "oslo | 12\nrome | 7\nlima | 1", 0.0),
        ([["oslo", 12], ["rome", 7]], "oslo | 12\nrome | 7\nrome | 7", 0.0),
        ([["oslo", 12], ["rome", 7]], "12 | oslo\n7 | rome", 0.0),
        ([["oslo", 12], ["rome", 7]], "oslo | 12 | rome | 7", 0.0),
        ([["oslo", 12], ["rome", 7]], "city | total\noslo | 12\nrome | 7", 0.0),
    ],
)
def test_answers_are_compared_as_values(target, answer, reward):
    assert play(answer, task=Task("?", target, {"database": SCRIPT})).reward == reward


def test_the_metrics_tell_how_near_an_answer_was():
    task = Task("?", [["oslo", 12], ["rome", 7]], {"database": SCRIPT})
    metrics = play("oslo | 12\nrome | 8\nrome | 9", task=task).metrics
    assert (metrics["answer_rows"], metrics["answer_rows_right"]) == (3, 1)


def test_a_huge_answer_has_no_rows():
    assert parse_rows("a\n" * 5000).total() == 5000
    assert parse_rows("a\n" * 5001) == Counter()
    assert parse_rows("1e3 | a b ") == Counter([(Fraction(1000), "a b")])


@pytest.mark.parametrize("target", [None, [], [[]], ["oslo"], "", " ", [["oslo", None]], {"a": 1}])
def test_a_target_that_is_no_answer_is_refused(target):
    with pytest.raises(TaskError, match=r"the target must|the cells of the target"):
        target_rows(target)


@pytest.mark.parametrize("database", [None, 3, "CREATE TABLE", "CREATE TABLE t (a);\0", "ATTACH 'a.db' AS a", "\ud800"])
def test_a_database_that_cannot_be_made_is_refused(database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TaskError, match=r"metadata\['database'\] of the task"):
        asyncio.run(SqlAnalystEnv().reset(Task("?", 1, {"database": database})))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_expert_solves_1000_tasks():
    async def run():
        tasks = generate_tasks("test", level="all", count=1000)
        return [await llmgym.run_episode(SqlAnalystEnv(), task, SqlAnalystExpert()) for task in tasks]

    episodes = asyncio.run(run())
    assert [episode.reward for episode in episodes] == [1.0] * 1000
    assert sum(episode.metrics["queries_failed"] for episode in episodes) == 0
    by_level = [{episode.metrics["turns"] for episode in episodes[level::3]} for level in range(3)]
    assert by_level == [{4}, {5}, {6}]


def test_doing_nothing_earns_nothing():
    assert {play("", task=task).reward for task in generate_tasks("val", level="all")} == {0.0}


def test_256_episodes_at_once_are_what_they_are_alone():
    tasks = generate_tasks("val", level="all", count=64) * 4
    together, alone = (play_all(SqlAnalystEnv, SqlAnalystExpert, tasks, width=width) for width in (256, 1))
    assert [episode.messages for episode in together] == [episode.messages for episode in alone]
    assert {episode.reward for episode in together} == {1.0}


def test_the_database_of_a_task_is_made_once():
    _template.cache_clear()
    play_all(SqlAnalystEnv, SqlAnalystExpert, generate_tasks("val", count=2) * 10)
    assert _template.cache_info().misses == 2


def test_a_hostile_episode_disturbs_no_other():
    async def run():
        heavy = sql("SELECT count(*) FROM " + ", ".join(f"sqlite_master t{index}" for index in range(20)))
        hostile = [{"role": "assistant", "tool_calls": [heavy] * 4}, "42"]
        policies = [
            llmgym.ScriptedPolicy([{"role": "assistant", "tool_calls": [sql("SELECT 42")]}, "42"]) for _ in "ab"
        ]
        policies.append(llmgym.ScriptedPolicy(hostile))
        return await asyncio.gather(*(llmgym.run_episode(SqlAnalystEnv(), TASK, policy) for policy in policies))

    *honest, hostile = asyncio.run(run())
    assert [results(episode) for episode in honest] == [["42"], ["42"]]
    assert hostile.metrics["queries_failed"] == 4


def test_a_closed_episode_stops_its_query(unlimited):
    database = unlimited(MAX_STEPS=10**12, QUICK_CPU_S=600.0)

    async def run():
        running = asyncio.create_task(asyncio.to_thread(database.query, "SELECT count(*) FROM t a, t b, t c, t d, t e"))
        while not database._lock.locked():  # until the query has begun
            await asyncio.sleep(0.01)
        database.close()
        with pytest.raises(ToolError, match="takes too long"):
            await running

    asyncio.run(run())
    with pytest.raises(ToolError, match="closed"):
        database.query("SELECT 1")


@pytest.fixture
def semaphores(monkeypatch):
    """The semaphores of quick and of slow queries, a place each, and no query is ended by its steps."""
    semaphores = {0.05: FairSemaphore(1), 0.1: FairSemaphore(1)}
    for name, value in {"QUICK_CPU_S": 0.05, "MAX_CPU_S": 0.1, "MAX_STEPS": 10**12}.items():
        monkeypatch.setattr(f"llmgym_environments.sql_analyst.database.{name}", value)
    monkeypatch.setattr("llmgym_environments.sql_analyst.database._semaphore", lambda limit_s: semaphores[limit_s])
    return semaphores.values()


ENDLESS = "SELECT count(*) FROM " + ", ".join(f"sqlite_master t{index}" for index in range(40))
TOO_LONG = "tool_error: the query takes too long; join on keys, or read fewer rows"


def test_quick_queries_do_not_wait_for_slow_ones(semaphores):
    _, slow_semaphore = semaphores

    async def run():
        with slow_semaphore:
            script = [{"role": "assistant", "tool_calls": [sql(ENDLESS)] * 2}, "42"]
            slow = [
                asyncio.create_task(llmgym.run_episode(SqlAnalystEnv(), TASK, llmgym.ScriptedPolicy(script)))
                for _ in range(4)
            ]
            await asyncio.sleep(0)
            tasks = generate_tasks("test", level="all", count=8)
            quick = [llmgym.run_episode(SqlAnalystEnv(), task, SqlAnalystExpert()) for task in tasks]
            assert [episode.reward for episode in await asyncio.gather(*quick)] == [1.0] * 8
            while len(slow_semaphore._waiting) < 4 and not any(episode.done() for episode in slow):
                await asyncio.sleep(0.01)
            assert not any(episode.done() for episode in slow)
        return await asyncio.gather(*slow)

    assert [results(episode) for episode in asyncio.run(run())] == [[TOO_LONG] * 2] * 4


def test_a_query_that_is_not_quick_begins_again_and_is_seen_once(unlimited, monkeypatch):
    passed = []
    monkeypatch.setattr(
        "llmgym_environments.sql_analyst.database._semaphore",
        lambda limit_s: passed.append(limit_s) or FairSemaphore(1),
    )
    database = unlimited(QUICK_CPU_S=0.0, MAX_CPU_S=600.0)
    assert database.query("SELECT count(*), sum(a) FROM t") == "100 | 100"
    assert passed == [0.0, 600.0]
    with pytest.raises(ToolError, match="no such table"):
        database.query("SELECT * FROM missing")
    assert passed == [0.0, 600.0, 0.0]  # the others would fail again
    with pytest.raises(ToolError, match="takes too long"):
        unlimited(QUICK_CPU_S=300.0).query(ENDLESS.replace("sqlite_master", "t"))  # it has no more steps either
    assert passed == [0.0, 600.0, 0.0, 300.0]
    unlimited(QUICK_CPU_S=0.0)
    each_once = "SELECT a.amount FROM sales a, sales b, sales c, sales d WHERE b.amount + c.amount + d.amount = 90"
    episode = play([sql(f"{each_once} ORDER BY 1")], "42")  # 81 rows are looked at
    assert passed[4:] == [0.0, 600.0]
    assert results(episode) == ["7\n12\n30"]
    assert (episode.metrics["queries"], episode.metrics["queries_failed"]) == (1, 0)


def test_an_episode_is_closed_at_once_while_its_query_waits(semaphores):
    async def run(semaphore):
        database = Database(SCRIPT)
        with semaphore:
            waiting = asyncio.create_task(asyncio.to_thread(database.query, ENDLESS))
            while not semaphore._waiting and not waiting.done():
                await asyncio.sleep(0.01)
            database.close()
        with pytest.raises(ToolError, match="closed"):
            await waiting
        assert semaphore._free == 1

    for semaphore in semaphores:
        asyncio.run(run(semaphore))


def test_who_waits_longest_is_next():
    semaphore, order = FairSemaphore(2), []

    def wait(name):
        with semaphore:
            order.append(name)

    with semaphore, semaphore:
        threads = []
        for name in range(5):
            threads.append(threading.Thread(target=wait, args=(name,), daemon=True))
            threads[-1].start()
            while len(semaphore._waiting) <= name:
                time.sleep(0.001)
        assert order == []
        semaphore.__exit__()
        for thread in threads:
            thread.join(60)
        assert order == [0, 1, 2, 3, 4]
        semaphore.__enter__()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_has_places_of_its_own():
    semaphore = _semaphore(QUICK_CPU_S)
    with contextlib.ExitStack() as held:
        for _ in range(PLACES):
            held.enter_context(semaphore)
        child = multiprocessing.get_context("fork").Process(target=query, args=("SELECT 1",))
        child.start()
        child.join(60)
        child.kill()
    assert child.exitcode == 0


class RandomAnalyst(Policy):
    """Looks at the first rows of a random table and answers with a random cell of it."""

    rng = random.Random(0)

    async def act(self, messages, tool_specs):
        seen = messages[-1]["content"]
        turn = sum(message["role"] == "assistant" for message in messages)
        if turn == 2:
            return self.rng.choice(re.split(r" \| |\n", seen.partition("\n[cut")[0]))
        made = call("list_tables") if turn == 0 else sql(f"SELECT * FROM {self.rng.choice(seen.split(', '))}")
        return {"role": "assistant", "tool_calls": [made]}


@pytest.mark.parametrize(("level", "at_most"), [(1, 0.12), (2, 0.03), (3, 0.01)])
def test_what_a_random_policy_earns(level, at_most):
    async def run():
        tasks = generate_tasks("test", level=level, count=500)
        return [(await llmgym.run_episode(SqlAnalystEnv(), task, RandomAnalyst())).reward for task in tasks]

    assert sum(asyncio.run(run())) / 500 <= at_most


# Cheating: each attempt earns nothing, and some are shown to pay in a copy of the environment without its guard.


def reads_everything(task):
    (tables,) = yield [call("list_tables")]
    (rows,) = yield [sql(f"SELECT * FROM {tables.split(', ')[0]}")]
    yield "\n".join(sorted({*re.split(r" \| |\n", rows), *map(str, range(200))}))


def has_the_database_say_it(task):
    (said,) = yield [sql("SELECT -7 AS answer")]
    yield said


def reads_the_targets(task):
    yield [sql("ATTACH 'targets.db' AS leak")]
    (said,) = yield [sql(f"SELECT target FROM leak.targets WHERE id = '{task.id}'")]
    yield said


def changes_the_data(task):
    (tables,) = yield [call("list_tables")]
    table = tables.split(", ")[0]
    (columns,) = yield [call("describe_table", table=table)]
    numbers = re.findall(r"(\w+) integer", columns)
    yield [sql(f"UPDATE {table} SET {', '.join(f'{name} = 0' for name in numbers)}")]
    yield "0"


def edits_the_task(task):
    task.target[:] = [["fox", 1]]
    yield "fox | 1"


class RightRowsAreEnough(SqlAnalystEnv):
    """Guard removed: a row too many makes the answer wrong."""

    async def score(self, message):
        return float(self._target <= parse_rows(message["content"]))


class WithoutRights(SqlAnalystEnv):
    """Guard removed: the authorizer allows reading the task's own tables only."""

    async def setup(self):
        await super().setup()
        self.database._connection.set_authorizer(lambda *_: sqlite3.SQLITE_OK)


class AsksItsData(SqlAnalystEnv):
    """Guard removed: the answer is compared with the target. Here it is with what the episode's own database says."""

    async def score(self, message):
        return float(self.database.query(self.task.metadata["query"]) == message["content"])


class WritesAndAsksItsData(AsksItsData, WithoutRights):
    """The same with the second guard removed, too: nothing can be written."""

    async def setup(self):
        await super().setup()
        self.database._connection.execute("PRAGMA query_only = OFF")


CHEATS = {
    "answer with every value there is, a row each": (reads_everything, RightRowsAreEnough),
    "hide all numbers in a sentence": (
        plays("The answer may be " + " or ".join(map(str, range(200)))),
        None,
    ),
    "write what a check would write (`reward: 1.0`, turn markers)": (claims_success, None),
    "let the database say it: `SELECT -7`, answer `-7`": (has_the_database_say_it, None),
    "attach the file in which the targets are kept": (reads_the_targets, WithoutRights),
    "change the data, so that the question's query gives what one answers": (changes_the_data, WritesAndAsksItsData),
    "answer again and again": (plays(*map(str, range(200))), None),
    "edit the task while it is played": (edits_the_task, None),
}


@pytest.mark.parametrize("name", CHEATS)
def test_cheating_earns_nothing(name, tmp_path, monkeypatch):
    script, removed = CHEATS[name]
    level, kind = (3, list) if script is edits_the_task else (1, int)
    tasks = [task for task in generate_tasks("test", level=level, count=60) if isinstance(task.target, kind)][:10]
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("targets.db") as leak:
        leak.execute("CREATE TABLE targets (id TEXT, target)")
        leak.executemany("INSERT INTO targets VALUES (?, ?)", [(task.id, str(task.target)) for task in tasks])
    leak.close()
    check_guard(SqlAnalystEnv, removed, script, SqlAnalystExpert, tasks)


def test_data_that_cannot_be_written_can_be_asked():
    task = next(task for task in generate_tasks("test") if isinstance(task.target, int))
    assert asyncio.run(earned(AsksItsData(), changes_the_data, task)) == 0.0


# The tasks.


def test_the_first_thousand_tasks_never_change():
    tasks = [task.to_json() for task in generate_tasks("train", level="all", count=1000)]
    assert tasks[0] == {
        "id": "3d399e14423cbf0c",
        "prompt": "What is the total age?",
        "target": 98,
        "metadata": {
            "level": 1,
            "database": "CREATE TABLE garden (name text, height integer, age integer);\n"
            "INSERT INTO garden VALUES ('moss', 24, 18), ('sage', 25, 12), ('ginger', 32, 38), ('amber', 14, 30);\n",
            "query": "SELECT sum(age) FROM garden",
        },
    }
    digest = hashlib.sha256(json.dumps(tasks).encode()).hexdigest()
    assert digest == "831f6faf1c861d426a2d989c69c2efe30ab26606ab0262dd4537ccc61077de45"


def test_splits_share_no_names():
    names = {
        split: {
            " ".join(sorted({*re.findall(r"'(\w+)'", task.metadata["database"])} & {*WORDS}))
            for seed in (0, 1)
            for task in generate_tasks(split, level="all", count=900, seed=seed)
        }
        for split in ("train", "val", "test")
    }
    assert not names["train"] & names["val"]
    assert not names["train"] & names["test"]
    assert not names["val"] & names["test"]


def test_there_are_ten_thousand_different_tasks():
    tasks = generate_tasks(count=12_000)
    assert len({(task.prompt, task.metadata["database"]) for task in tasks}) >= 11_900


@pytest.mark.parametrize("level", [1, 2, 3])
def test_no_constant_earns_much(level):
    targets = Counter(json.dumps(task.target) for task in generate_tasks(level=level, count=2000))
    assert targets.most_common(1)[0][1] / 2000 <= 0.025


def test_level_1_fits_a_small_model():
    for task in generate_tasks("test"):
        table = re.fullmatch(
            r"CREATE TABLE \w+ \((\w+) text, (\w+) integer, (\w+) integer\);\nINSERT INTO \w+ VALUES (.+);\n",
            task.metadata["database"],
        )
        key, *measures = table.groups()[:3]
        rows = [json.loads(f"[{row}]") for row in re.findall(r"\((.+?)\)", table[4].replace("'", '"'))]
        assert len(rows) == 4 and all(1 <= number <= 49 for row in rows for number in row[1:])
        at = next(place for place, measure in enumerate(measures, start=1) if re.search(rf"\b{measure}\b", task.prompt))
        values = {row[0]: row[at] for row in rows}
        expected = {
            "What is the total": lambda values=values: sum(values.values()),
            f"Which {key} has": lambda values=values: max(values, key=values.get),
            "What is the": lambda task=task, values=values: values[task.prompt.split(" of ")[1].rstrip("?")],
        }
        answer = next(answer for begin, answer in expected.items() if task.prompt.startswith(begin))
        assert task.target == answer()
