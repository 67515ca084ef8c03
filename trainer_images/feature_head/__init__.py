"""The ``feature_head`` trainer image: a classification head on the stored features of a frozen backbone."""
