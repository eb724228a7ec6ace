"""transactions: transactional ids on the log of ``__transaction_state``, markers, and the checks of batches."""
