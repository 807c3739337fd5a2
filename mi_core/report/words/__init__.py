"""The words of a report.

It draws nothing and knows no page.

    wording     the verdict in words; answers: its texts; glossary: the terms
    numbers     how numbers look; sides: what the two groups are called
    evidence    what attacks say; bound, dp_audit, forgetting, memorisation: a question each
"""
