-- Orders of customers that are not known count for the country '?'.
SELECT window.start AS minute,
       coalesce(c.country, '?') AS country,
       sum(o.amount) AS revenue,
       count(*) AS orders,
       lineage_range(o) AS _lineage
FROM orders_trusted o
LEFT JOIN countries c ON c.customer_id = o.customer_id
GROUP BY window(o.ordered_at, ${window}), coalesce(c.country, '?')
