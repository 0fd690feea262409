create table t(a integer primary key, b text, c integer);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 60000)
    insert into t select i, hex(i * 2654435761 % 1000003) || substr(printf('%0100d', i), 1, i % 100), i * 31 % 997 from n;
create index by_b on t(b); create index by_c on t(c, b);
select c, count(*), min(b), max(length(b)) from t group by c having c % 100 = 7 order by c;
select count(*), sum(length(x.b)) from t x join t y on x.a = y.c;
delete from t where a % 3 = 0; update t set b = b || b where a % 5 = 0; vacuum;
select count(*), total(length(b)), min(b), max(b) from t; pragma integrity_check;
