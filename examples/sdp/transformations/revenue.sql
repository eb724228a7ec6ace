CREATE MATERIALIZED VIEW revenue
AS SELECT country, count(*) AS orders, sum(amount) AS revenue FROM orders GROUP BY country;
